/* Made by `python -m platoon_base.centers.host_source` from the forms of rules/: change these, not this file.
 *
 * Included by _kernels.c, which says what the rows of a table are.
 */

MANY_ARRAYS static int asgd_piece_float(
    float *restrict x_at, float *restrict c_at, float *restrict x_old_at, int64_t n)
{
    BITS_float refused = 0;
    for (int64_t i = 0; i < n; i++) {
        float x = x_at[i], c = c_at[i], x_old = x_old_at[i];
        float d_1 = x - x_old;
        float c_1 = c + d_1;
        float x_1 = c_1;
        float x_old_1 = c_1;
        BITS_float keep = -(BITS_float)(finite_float(c_1));
        refused |= ~keep;
        x_at[i] = select_float(keep, x_1, x);
        c_at[i] = select_float(keep, c_1, c);
        x_old_at[i] = select_float(keep, x_old_1, x_old);
    }
    return refused != 0;
}

static int64_t asgd_float(const int64_t *row, const double *scalars)
{
    float *x_at = (float *)(intptr_t)row[0];
    float *c_at = (float *)(intptr_t)row[1];
    float *x_old_at = (float *)(intptr_t)row[2];
    int64_t n = row[3];
    (void)scalars;
    if (!asgd_piece_float(x_at, c_at, x_old_at, n))
        return -1;
    for (int64_t i = 0; i < n; i++) {
        float x = x_at[i], c = c_at[i], x_old = x_old_at[i];
        float d_1 = x - x_old;
        float c_1 = c + d_1;
        if (!(finite_float(c_1)))
            return i;
    }
    return 0;
}

MANY_ARRAYS static int asgd_piece_double(
    double *restrict x_at, double *restrict c_at, double *restrict x_old_at, int64_t n)
{
    BITS_double refused = 0;
    for (int64_t i = 0; i < n; i++) {
        double x = x_at[i], c = c_at[i], x_old = x_old_at[i];
        double d_1 = x - x_old;
        double c_1 = c + d_1;
        double x_1 = c_1;
        double x_old_1 = c_1;
        BITS_double keep = -(BITS_double)(finite_double(c_1));
        refused |= ~keep;
        x_at[i] = select_double(keep, x_1, x);
        c_at[i] = select_double(keep, c_1, c);
        x_old_at[i] = select_double(keep, x_old_1, x_old);
    }
    return refused != 0;
}

static int64_t asgd_double(const int64_t *row, const double *scalars)
{
    double *x_at = (double *)(intptr_t)row[0];
    double *c_at = (double *)(intptr_t)row[1];
    double *x_old_at = (double *)(intptr_t)row[2];
    int64_t n = row[3];
    (void)scalars;
    if (!asgd_piece_double(x_at, c_at, x_old_at, n))
        return -1;
    for (int64_t i = 0; i < n; i++) {
        double x = x_at[i], c = c_at[i], x_old = x_old_at[i];
        double d_1 = x - x_old;
        double c_1 = c + d_1;
        if (!(finite_double(c_1)))
            return i;
    }
    return 0;
}

MANY_ARRAYS static int averaged_easgd_piece_float(
    float *restrict x_at, float *restrict c_at, float *restrict x_old_at, float *restrict a_at, int64_t n, float more, float pull, float alpha, float weight)
{
    BITS_float refused = 0;
    for (int64_t i = 0; i < n; i++) {
        float x = x_at[i], c = c_at[i], x_old = x_old_at[i], a = a_at[i];
        float x_1 = x + (more * (x - x_old));
        float e_1 = x_1 - c;
        float x_2 = x_1 - (pull * e_1);
        float c_1 = c + (alpha * e_1);
        float a_1 = a + (weight * (c_1 - a));
        float x_old_1 = x_2;
        BITS_float keep = -(BITS_float)(finite_float(c_1) & finite_float(a_1));
        refused |= ~keep;
        x_at[i] = select_float(keep, x_2, x);
        c_at[i] = select_float(keep, c_1, c);
        x_old_at[i] = select_float(keep, x_old_1, x_old);
        a_at[i] = select_float(keep, a_1, a);
    }
    return refused != 0;
}

static int64_t averaged_easgd_float(const int64_t *row, const double *scalars)
{
    float *x_at = (float *)(intptr_t)row[0];
    float *c_at = (float *)(intptr_t)row[1];
    float *x_old_at = (float *)(intptr_t)row[2];
    float *a_at = (float *)(intptr_t)row[3];
    float more = (float)scalars[0];
    float pull = (float)scalars[1];
    float alpha = (float)scalars[2];
    float weight = (float)scalars[3];
    int64_t n = row[4];
    (void)scalars;
    if (!averaged_easgd_piece_float(x_at, c_at, x_old_at, a_at, n, more, pull, alpha, weight))
        return -1;
    for (int64_t i = 0; i < n; i++) {
        float x = x_at[i], c = c_at[i], x_old = x_old_at[i], a = a_at[i];
        float x_1 = x + (more * (x - x_old));
        float e_1 = x_1 - c;
        float c_1 = c + (alpha * e_1);
        float a_1 = a + (weight * (c_1 - a));
        if (!(finite_float(c_1) & finite_float(a_1)))
            return i;
    }
    return 0;
}

MANY_ARRAYS static int averaged_easgd_piece_double(
    double *restrict x_at, double *restrict c_at, double *restrict x_old_at, double *restrict a_at, int64_t n, double more, double pull, double alpha, double weight)
{
    BITS_double refused = 0;
    for (int64_t i = 0; i < n; i++) {
        double x = x_at[i], c = c_at[i], x_old = x_old_at[i], a = a_at[i];
        double x_1 = x + (more * (x - x_old));
        double e_1 = x_1 - c;
        double x_2 = x_1 - (pull * e_1);
        double c_1 = c + (alpha * e_1);
        double a_1 = a + (weight * (c_1 - a));
        double x_old_1 = x_2;
        BITS_double keep = -(BITS_double)(finite_double(c_1) & finite_double(a_1));
        refused |= ~keep;
        x_at[i] = select_double(keep, x_2, x);
        c_at[i] = select_double(keep, c_1, c);
        x_old_at[i] = select_double(keep, x_old_1, x_old);
        a_at[i] = select_double(keep, a_1, a);
    }
    return refused != 0;
}

static int64_t averaged_easgd_double(const int64_t *row, const double *scalars)
{
    double *x_at = (double *)(intptr_t)row[0];
    double *c_at = (double *)(intptr_t)row[1];
    double *x_old_at = (double *)(intptr_t)row[2];
    double *a_at = (double *)(intptr_t)row[3];
    double more = (double)scalars[0];
    double pull = (double)scalars[1];
    double alpha = (double)scalars[2];
    double weight = (double)scalars[3];
    int64_t n = row[4];
    (void)scalars;
    if (!averaged_easgd_piece_double(x_at, c_at, x_old_at, a_at, n, more, pull, alpha, weight))
        return -1;
    for (int64_t i = 0; i < n; i++) {
        double x = x_at[i], c = c_at[i], x_old = x_old_at[i], a = a_at[i];
        double x_1 = x + (more * (x - x_old));
        double e_1 = x_1 - c;
        double c_1 = c + (alpha * e_1);
        double a_1 = a + (weight * (c_1 - a));
        if (!(finite_double(c_1) & finite_double(a_1)))
            return i;
    }
    return 0;
}

MANY_ARRAYS static int center_momentum_piece_float(
    float *restrict x_at, float *restrict c_at, float *restrict s_x_at, float *restrict m_at, float *restrict s_at, int64_t n, float alpha, float b, float gain)
{
    BITS_float refused = 0;
    for (int64_t i = 0; i < n; i++) {
        float x = x_at[i], c = c_at[i], s_x = s_x_at[i], m = m_at[i], s = s_at[i];
        float x_1 = x + (s - s_x);
        float d_1 = alpha * (x_1 - c);
        float m_1 = (b * m) + (((float)1 - b) * d_1);
        float j_1 = gain * m_1;
        float x_2 = x_1 + (j_1 - d_1);
        float c_1 = c + (j_1 + d_1);
        float s_1 = s + j_1;
        float s_x_1 = s_1;
        BITS_float keep = -(BITS_float)(finite_float(c_1) & finite_float(m_1) & finite_float(s_1));
        refused |= ~keep;
        x_at[i] = select_float(keep, x_2, x);
        c_at[i] = select_float(keep, c_1, c);
        s_x_at[i] = select_float(keep, s_x_1, s_x);
        m_at[i] = select_float(keep, m_1, m);
        s_at[i] = select_float(keep, s_1, s);
    }
    return refused != 0;
}

static int64_t center_momentum_float(const int64_t *row, const double *scalars)
{
    float *x_at = (float *)(intptr_t)row[0];
    float *c_at = (float *)(intptr_t)row[1];
    float *s_x_at = (float *)(intptr_t)row[2];
    float *m_at = (float *)(intptr_t)row[3];
    float *s_at = (float *)(intptr_t)row[4];
    float alpha = (float)scalars[0];
    float b = (float)scalars[1];
    float gain = (float)scalars[2];
    int64_t n = row[5];
    (void)scalars;
    if (!center_momentum_piece_float(x_at, c_at, s_x_at, m_at, s_at, n, alpha, b, gain))
        return -1;
    for (int64_t i = 0; i < n; i++) {
        float x = x_at[i], c = c_at[i], s_x = s_x_at[i], m = m_at[i], s = s_at[i];
        float x_1 = x + (s - s_x);
        float d_1 = alpha * (x_1 - c);
        float m_1 = (b * m) + (((float)1 - b) * d_1);
        float j_1 = gain * m_1;
        float c_1 = c + (j_1 + d_1);
        float s_1 = s + j_1;
        if (!(finite_float(c_1) & finite_float(m_1) & finite_float(s_1)))
            return i;
    }
    return 0;
}

MANY_ARRAYS static int center_momentum_piece_double(
    double *restrict x_at, double *restrict c_at, double *restrict s_x_at, double *restrict m_at, double *restrict s_at, int64_t n, double alpha, double b, double gain)
{
    BITS_double refused = 0;
    for (int64_t i = 0; i < n; i++) {
        double x = x_at[i], c = c_at[i], s_x = s_x_at[i], m = m_at[i], s = s_at[i];
        double x_1 = x + (s - s_x);
        double d_1 = alpha * (x_1 - c);
        double m_1 = (b * m) + (((double)1 - b) * d_1);
        double j_1 = gain * m_1;
        double x_2 = x_1 + (j_1 - d_1);
        double c_1 = c + (j_1 + d_1);
        double s_1 = s + j_1;
        double s_x_1 = s_1;
        BITS_double keep = -(BITS_double)(finite_double(c_1) & finite_double(m_1) & finite_double(s_1));
        refused |= ~keep;
        x_at[i] = select_double(keep, x_2, x);
        c_at[i] = select_double(keep, c_1, c);
        s_x_at[i] = select_double(keep, s_x_1, s_x);
        m_at[i] = select_double(keep, m_1, m);
        s_at[i] = select_double(keep, s_1, s);
    }
    return refused != 0;
}

static int64_t center_momentum_double(const int64_t *row, const double *scalars)
{
    double *x_at = (double *)(intptr_t)row[0];
    double *c_at = (double *)(intptr_t)row[1];
    double *s_x_at = (double *)(intptr_t)row[2];
    double *m_at = (double *)(intptr_t)row[3];
    double *s_at = (double *)(intptr_t)row[4];
    double alpha = (double)scalars[0];
    double b = (double)scalars[1];
    double gain = (double)scalars[2];
    int64_t n = row[5];
    (void)scalars;
    if (!center_momentum_piece_double(x_at, c_at, s_x_at, m_at, s_at, n, alpha, b, gain))
        return -1;
    for (int64_t i = 0; i < n; i++) {
        double x = x_at[i], c = c_at[i], s_x = s_x_at[i], m = m_at[i], s = s_at[i];
        double x_1 = x + (s - s_x);
        double d_1 = alpha * (x_1 - c);
        double m_1 = (b * m) + (((double)1 - b) * d_1);
        double j_1 = gain * m_1;
        double c_1 = c + (j_1 + d_1);
        double s_1 = s + j_1;
        if (!(finite_double(c_1) & finite_double(m_1) & finite_double(s_1)))
            return i;
    }
    return 0;
}

FEW_ARRAYS static int easgd_piece_float(
    float *restrict x_at, float *restrict c_at, int64_t n, float alpha)
{
    BITS_float refused = 0;
    for (int64_t i = 0; i < n; i++) {
        float x = x_at[i], c = c_at[i];
        float d_1 = alpha * (x - c);
        float x_1 = x - d_1;
        float c_1 = c + d_1;
        BITS_float keep = -(BITS_float)(finite_float(c_1));
        refused |= ~keep;
        x_at[i] = select_float(keep, x_1, x);
        c_at[i] = select_float(keep, c_1, c);
    }
    return refused != 0;
}

static int64_t easgd_float(const int64_t *row, const double *scalars)
{
    float *x_at = (float *)(intptr_t)row[0];
    float *c_at = (float *)(intptr_t)row[1];
    float alpha = (float)scalars[0];
    int64_t n = row[2];
    (void)scalars;
    if (!easgd_piece_float(x_at, c_at, n, alpha))
        return -1;
    for (int64_t i = 0; i < n; i++) {
        float x = x_at[i], c = c_at[i];
        float d_1 = alpha * (x - c);
        float c_1 = c + d_1;
        if (!(finite_float(c_1)))
            return i;
    }
    return 0;
}

FEW_ARRAYS static int easgd_piece_double(
    double *restrict x_at, double *restrict c_at, int64_t n, double alpha)
{
    BITS_double refused = 0;
    for (int64_t i = 0; i < n; i++) {
        double x = x_at[i], c = c_at[i];
        double d_1 = alpha * (x - c);
        double x_1 = x - d_1;
        double c_1 = c + d_1;
        BITS_double keep = -(BITS_double)(finite_double(c_1));
        refused |= ~keep;
        x_at[i] = select_double(keep, x_1, x);
        c_at[i] = select_double(keep, c_1, c);
    }
    return refused != 0;
}

static int64_t easgd_double(const int64_t *row, const double *scalars)
{
    double *x_at = (double *)(intptr_t)row[0];
    double *c_at = (double *)(intptr_t)row[1];
    double alpha = (double)scalars[0];
    int64_t n = row[2];
    (void)scalars;
    if (!easgd_piece_double(x_at, c_at, n, alpha))
        return -1;
    for (int64_t i = 0; i < n; i++) {
        double x = x_at[i], c = c_at[i];
        double d_1 = alpha * (x - c);
        double c_1 = c + d_1;
        if (!(finite_double(c_1)))
            return i;
    }
    return 0;
}

MANY_ARRAYS static int gosgd_piece_float(
    float *restrict x_at, float *restrict c_at, float *restrict x_old_at, int64_t n, float part)
{
    BITS_float refused = 0;
    for (int64_t i = 0; i < n; i++) {
        float x = x_at[i], c = c_at[i], x_old = x_old_at[i];
        float c_1 = c + (part * (x - x_old));
        float x_1 = c_1;
        float x_old_1 = c_1;
        BITS_float keep = -(BITS_float)(finite_float(c_1));
        refused |= ~keep;
        x_at[i] = select_float(keep, x_1, x);
        c_at[i] = select_float(keep, c_1, c);
        x_old_at[i] = select_float(keep, x_old_1, x_old);
    }
    return refused != 0;
}

static int64_t gosgd_float(const int64_t *row, const double *scalars)
{
    float *x_at = (float *)(intptr_t)row[0];
    float *c_at = (float *)(intptr_t)row[1];
    float *x_old_at = (float *)(intptr_t)row[2];
    float part = (float)scalars[0];
    int64_t n = row[3];
    (void)scalars;
    if (!gosgd_piece_float(x_at, c_at, x_old_at, n, part))
        return -1;
    for (int64_t i = 0; i < n; i++) {
        float x = x_at[i], c = c_at[i], x_old = x_old_at[i];
        float c_1 = c + (part * (x - x_old));
        if (!(finite_float(c_1)))
            return i;
    }
    return 0;
}

MANY_ARRAYS static int gosgd_piece_double(
    double *restrict x_at, double *restrict c_at, double *restrict x_old_at, int64_t n, double part)
{
    BITS_double refused = 0;
    for (int64_t i = 0; i < n; i++) {
        double x = x_at[i], c = c_at[i], x_old = x_old_at[i];
        double c_1 = c + (part * (x - x_old));
        double x_1 = c_1;
        double x_old_1 = c_1;
        BITS_double keep = -(BITS_double)(finite_double(c_1));
        refused |= ~keep;
        x_at[i] = select_double(keep, x_1, x);
        c_at[i] = select_double(keep, c_1, c);
        x_old_at[i] = select_double(keep, x_old_1, x_old);
    }
    return refused != 0;
}

static int64_t gosgd_double(const int64_t *row, const double *scalars)
{
    double *x_at = (double *)(intptr_t)row[0];
    double *c_at = (double *)(intptr_t)row[1];
    double *x_old_at = (double *)(intptr_t)row[2];
    double part = (double)scalars[0];
    int64_t n = row[3];
    (void)scalars;
    if (!gosgd_piece_double(x_at, c_at, x_old_at, n, part))
        return -1;
    for (int64_t i = 0; i < n; i++) {
        double x = x_at[i], c = c_at[i], x_old = x_old_at[i];
        double c_1 = c + (part * (x - x_old));
        if (!(finite_double(c_1)))
            return i;
    }
    return 0;
}

MANY_ARRAYS static int outer_heavy_ball_piece_float(
    float *restrict totals, float *restrict c_at, float *restrict m_at, int64_t n, float count, float lr, float decay, float ahead)
{
    BITS_float refused = 0;
    for (int64_t i = 0; i < n; i++) {
        float d = totals[i] / count;
        float c = c_at[i], m = m_at[i];
        float c_1 = c + (lr * (d + (ahead * m)));
        float m_1 = (decay * m) + d;
        BITS_float keep = -(BITS_float)(finite_float(c_1) & finite_float(m_1));
        refused |= ~keep;
        totals[i] = select_float(keep, 0, totals[i]);
        c_at[i] = select_float(keep, c_1, c);
        m_at[i] = select_float(keep, m_1, m);
    }
    return refused != 0;
}

static int64_t outer_heavy_ball_float(const int64_t *row, const double *scalars)
{
    float *totals = (float *)(intptr_t)row[0];
    float *c_at = (float *)(intptr_t)row[1];
    float *m_at = (float *)(intptr_t)row[2];
    float count = (float)scalars[0];
    float lr = (float)scalars[1];
    float decay = (float)scalars[2];
    float ahead = (float)scalars[3];
    int64_t n = row[3];
    (void)scalars;
    if (!outer_heavy_ball_piece_float(totals, c_at, m_at, n, count, lr, decay, ahead))
        return -1;
    return clear_float(totals, n);
}

MANY_ARRAYS static int outer_heavy_ball_piece_double(
    double *restrict totals, double *restrict c_at, double *restrict m_at, int64_t n, double count, double lr, double decay, double ahead)
{
    BITS_double refused = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = totals[i] / count;
        double c = c_at[i], m = m_at[i];
        double c_1 = c + (lr * (d + (ahead * m)));
        double m_1 = (decay * m) + d;
        BITS_double keep = -(BITS_double)(finite_double(c_1) & finite_double(m_1));
        refused |= ~keep;
        totals[i] = select_double(keep, 0, totals[i]);
        c_at[i] = select_double(keep, c_1, c);
        m_at[i] = select_double(keep, m_1, m);
    }
    return refused != 0;
}

static int64_t outer_heavy_ball_double(const int64_t *row, const double *scalars)
{
    double *totals = (double *)(intptr_t)row[0];
    double *c_at = (double *)(intptr_t)row[1];
    double *m_at = (double *)(intptr_t)row[2];
    double count = (double)scalars[0];
    double lr = (double)scalars[1];
    double decay = (double)scalars[2];
    double ahead = (double)scalars[3];
    int64_t n = row[3];
    (void)scalars;
    if (!outer_heavy_ball_piece_double(totals, c_at, m_at, n, count, lr, decay, ahead))
        return -1;
    return clear_double(totals, n);
}

MANY_ARRAYS static int outer_mean_piece_float(
    float *restrict totals, float *restrict c_at, int64_t n, float count)
{
    BITS_float refused = 0;
    for (int64_t i = 0; i < n; i++) {
        float d = totals[i] / count;
        float c = c_at[i];
        float c_1 = c + d;
        BITS_float keep = -(BITS_float)(finite_float(c_1));
        refused |= ~keep;
        totals[i] = select_float(keep, 0, totals[i]);
        c_at[i] = select_float(keep, c_1, c);
    }
    return refused != 0;
}

static int64_t outer_mean_float(const int64_t *row, const double *scalars)
{
    float *totals = (float *)(intptr_t)row[0];
    float *c_at = (float *)(intptr_t)row[1];
    float count = (float)scalars[0];
    int64_t n = row[2];
    (void)scalars;
    if (!outer_mean_piece_float(totals, c_at, n, count))
        return -1;
    return clear_float(totals, n);
}

MANY_ARRAYS static int outer_mean_piece_double(
    double *restrict totals, double *restrict c_at, int64_t n, double count)
{
    BITS_double refused = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = totals[i] / count;
        double c = c_at[i];
        double c_1 = c + d;
        BITS_double keep = -(BITS_double)(finite_double(c_1));
        refused |= ~keep;
        totals[i] = select_double(keep, 0, totals[i]);
        c_at[i] = select_double(keep, c_1, c);
    }
    return refused != 0;
}

static int64_t outer_mean_double(const int64_t *row, const double *scalars)
{
    double *totals = (double *)(intptr_t)row[0];
    double *c_at = (double *)(intptr_t)row[1];
    double count = (double)scalars[0];
    int64_t n = row[2];
    (void)scalars;
    if (!outer_mean_piece_double(totals, c_at, n, count))
        return -1;
    return clear_double(totals, n);
}

MANY_ARRAYS static int outer_nesterov_piece_float(
    float *restrict totals, float *restrict c_at, float *restrict m_at, int64_t n, float count, float lr, float decay, float ahead)
{
    BITS_float refused = 0;
    for (int64_t i = 0; i < n; i++) {
        float d = totals[i] / count;
        float c = c_at[i], m = m_at[i];
        float m_1 = (decay * m) + d;
        float c_1 = c + (lr * (d + (ahead * m_1)));
        BITS_float keep = -(BITS_float)(finite_float(c_1) & finite_float(m_1));
        refused |= ~keep;
        totals[i] = select_float(keep, 0, totals[i]);
        c_at[i] = select_float(keep, c_1, c);
        m_at[i] = select_float(keep, m_1, m);
    }
    return refused != 0;
}

static int64_t outer_nesterov_float(const int64_t *row, const double *scalars)
{
    float *totals = (float *)(intptr_t)row[0];
    float *c_at = (float *)(intptr_t)row[1];
    float *m_at = (float *)(intptr_t)row[2];
    float count = (float)scalars[0];
    float lr = (float)scalars[1];
    float decay = (float)scalars[2];
    float ahead = (float)scalars[3];
    int64_t n = row[3];
    (void)scalars;
    if (!outer_nesterov_piece_float(totals, c_at, m_at, n, count, lr, decay, ahead))
        return -1;
    return clear_float(totals, n);
}

MANY_ARRAYS static int outer_nesterov_piece_double(
    double *restrict totals, double *restrict c_at, double *restrict m_at, int64_t n, double count, double lr, double decay, double ahead)
{
    BITS_double refused = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = totals[i] / count;
        double c = c_at[i], m = m_at[i];
        double m_1 = (decay * m) + d;
        double c_1 = c + (lr * (d + (ahead * m_1)));
        BITS_double keep = -(BITS_double)(finite_double(c_1) & finite_double(m_1));
        refused |= ~keep;
        totals[i] = select_double(keep, 0, totals[i]);
        c_at[i] = select_double(keep, c_1, c);
        m_at[i] = select_double(keep, m_1, m);
    }
    return refused != 0;
}

static int64_t outer_nesterov_double(const int64_t *row, const double *scalars)
{
    double *totals = (double *)(intptr_t)row[0];
    double *c_at = (double *)(intptr_t)row[1];
    double *m_at = (double *)(intptr_t)row[2];
    double count = (double)scalars[0];
    double lr = (double)scalars[1];
    double decay = (double)scalars[2];
    double ahead = (double)scalars[3];
    int64_t n = row[3];
    (void)scalars;
    if (!outer_nesterov_piece_double(totals, c_at, m_at, n, count, lr, decay, ahead))
        return -1;
    return clear_double(totals, n);
}

ENTRY(asgd, float, 4, "Kn:asgd_float32")
ENTRY(asgd, double, 4, "Kn:asgd_float64")
ENTRY(averaged_easgd, float, 5, "Kndddd:averaged_easgd_float32")
ENTRY(averaged_easgd, double, 5, "Kndddd:averaged_easgd_float64")
ENTRY(center_momentum, float, 6, "Knddd:center_momentum_float32")
ENTRY(center_momentum, double, 6, "Knddd:center_momentum_float64")
ENTRY(easgd, float, 3, "Knd:easgd_float32")
ENTRY(easgd, double, 3, "Knd:easgd_float64")
ENTRY(gosgd, float, 4, "Knd:gosgd_float32")
ENTRY(gosgd, double, 4, "Knd:gosgd_float64")
ENTRY(outer_heavy_ball, float, 4, "Kndddd:outer_heavy_ball_float32")
ENTRY(outer_heavy_ball, double, 4, "Kndddd:outer_heavy_ball_float64")
ENTRY(outer_mean, float, 3, "Knd:outer_mean_float32")
ENTRY(outer_mean, double, 3, "Knd:outer_mean_float64")
ENTRY(outer_nesterov, float, 4, "Kndddd:outer_nesterov_float32")
ENTRY(outer_nesterov, double, 4, "Kndddd:outer_nesterov_float64")

#define RULE_METHODS \
    {"asgd_float32", py_asgd_float, METH_VARARGS, "asgd_float32(table_address, pieces)"}, \
    {"asgd_float64", py_asgd_double, METH_VARARGS, "asgd_float64(table_address, pieces)"}, \
    {"averaged_easgd_float32", py_averaged_easgd_float, METH_VARARGS, "averaged_easgd_float32(table_address, pieces, more, pull, alpha, weight)"}, \
    {"averaged_easgd_float64", py_averaged_easgd_double, METH_VARARGS, "averaged_easgd_float64(table_address, pieces, more, pull, alpha, weight)"}, \
    {"center_momentum_float32", py_center_momentum_float, METH_VARARGS, "center_momentum_float32(table_address, pieces, alpha, b, gain)"}, \
    {"center_momentum_float64", py_center_momentum_double, METH_VARARGS, "center_momentum_float64(table_address, pieces, alpha, b, gain)"}, \
    {"easgd_float32", py_easgd_float, METH_VARARGS, "easgd_float32(table_address, pieces, alpha)"}, \
    {"easgd_float64", py_easgd_double, METH_VARARGS, "easgd_float64(table_address, pieces, alpha)"}, \
    {"gosgd_float32", py_gosgd_float, METH_VARARGS, "gosgd_float32(table_address, pieces, part)"}, \
    {"gosgd_float64", py_gosgd_double, METH_VARARGS, "gosgd_float64(table_address, pieces, part)"}, \
    {"outer_heavy_ball_float32", py_outer_heavy_ball_float, METH_VARARGS, "outer_heavy_ball_float32(table_address, pieces, count, lr, decay, ahead)"}, \
    {"outer_heavy_ball_float64", py_outer_heavy_ball_double, METH_VARARGS, "outer_heavy_ball_float64(table_address, pieces, count, lr, decay, ahead)"}, \
    {"outer_mean_float32", py_outer_mean_float, METH_VARARGS, "outer_mean_float32(table_address, pieces, count)"}, \
    {"outer_mean_float64", py_outer_mean_double, METH_VARARGS, "outer_mean_float64(table_address, pieces, count)"}, \
    {"outer_nesterov_float32", py_outer_nesterov_float, METH_VARARGS, "outer_nesterov_float32(table_address, pieces, count, lr, decay, ahead)"}, \
    {"outer_nesterov_float64", py_outer_nesterov_double, METH_VARARGS, "outer_nesterov_float64(table_address, pieces, count, lr, decay, ahead)"},
