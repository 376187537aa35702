"""What steps and metrics of the user's own classes put into ``logs``, on two workers."""

import pytest
from keras_here import KERAS_2, keras
from scripts_here import script_path

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backend,
    pytest.mark.timeout(600),
    pytest.mark.skipif(KERAS_2, reason="steps and metrics are those of Keras 3: run it in .nox/keras3 (make test)"),
]


def test_names_that_a_step_chooses_have_the_values_of_all_workers(run_keras):
    """A metric's result under another name is exact; another number is the mean of the last batches."""
    outcome = run_keras(script_path("keras_step_logs_names_that_a_step_chooses")).require_success()
    assert "'last' in the logs of an epoch, which no metric of the model tracks" in outcome.logs[0]


def test_a_worker_without_a_batch_in_an_epoch_keeps_nobody_waiting(run_keras):
    run_keras(script_path("keras_step_logs_an_epoch_without_batches")).require_success()


class _Counted(keras.metrics.Metric):
    def __init__(self, **options):
        super().__init__(**options)
        self.total = self.add_weight(name="total", shape=(), initializer="zeros")
        self.count = self.add_weight(name="count", shape=(), initializer="zeros")
        self.threshold = 0.5

    def result(self):
        return self.total / self.count


class Adds(_Counted):
    def update_state(self, y_true, y_pred, sample_weight=None):
        values = keras.ops.cast(y_pred > self.threshold, "float32")
        if sample_weight is not None:
            values = values * sample_weight
        self.total.assign_add(keras.ops.sum(values))
        self.count.assign_add(keras.ops.cast(len(y_true), self.dtype))


class Contains(_Counted):
    def __init__(self, **options):
        super().__init__(**options)
        self.inner = keras.metrics.Mean()

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.inner.update_state(y_pred)
        self.total.assign_add(keras.ops.sum(y_pred))
        self.count.assign_add(1)


class LeavesOneOut(_Counted):
    """Changes a variable in another method."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(keras.ops.sum(y_pred))

    def result(self):
        self.count.assign(keras.ops.maximum(self.count, self.total))
        return self.count


class Highest(_Counted):
    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign(keras.ops.maximum(self.total, keras.ops.max(y_pred)))


class ByAMethod(_Counted):
    def update_state(self, y_true, y_pred, sample_weight=None):
        self.set_all(y_pred)

    def set_all(self, value):
        self.total.assign(value)


class ByAClosure(_Counted):
    def update_state(self, y_true, y_pred, sample_weight=None):
        return [self.total.assign(value) for value in y_pred], lambda: self.total.assign(y_true)


@pytest.mark.parametrize("kind", [Adds, Contains, LeavesOneOut, Highest, ByAMethod, ByAClosure])
def test_a_metric_that_only_adds_is_recognized(kind):
    from platoon_plugins.keras.sums import only_adds

    assert only_adds(kind(name="mine")) == (kind in (Adds, Contains))
