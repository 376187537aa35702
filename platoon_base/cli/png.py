"""Pictures as PNG, from SVG; the libraries are those of the extra ``plots``."""

from __future__ import annotations

import importlib.util
from importlib.resources import files

from platoon_base.errors import ConfigurationError

__all__ = ["as_png", "has_png", "require_png"]

# The font comes along: resvg draws no text where it finds none, as in small containers, and reports no error.
_RENDERER, _FONT, _FAMILY = "resvg_py", "font_source_sans_pro", "Source Sans Pro"
_WEIGHTS = ("Regular", "Semibold")
_ZOOM = 2


def has_png() -> bool:
    """Return whether the libraries that `as_png` needs are installed."""
    return not _missing()


def require_png(wanted: str) -> None:
    """Raise `ConfigurationError` if a library is missing; ``wanted`` is what asks for a PNG, such as an option."""
    if missing := _missing():
        raise ConfigurationError(
            f"got {wanted}, but {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed here, "
            "with which PNG is drawn: pip install 'platoon-plugins[plots]', or "
            f"pip install {' '.join(each.replace('_', '-') for each in missing)}"
        )


def as_png(svg: str) -> bytes:
    """Return a picture as PNG, in light colors, twice as large as the SVG says, for screens and print."""
    import resvg_py

    fonts = files(_FONT) / "files"
    image = resvg_py.svg_to_bytes(
        svg_string=svg,
        zoom=_ZOOM,
        sans_serif_family=_FAMILY,
        font_files=[str(fonts / f"SourceSansPro-{weight}.ttf") for weight in _WEIGHTS],
    )
    return bytes(image)  # some versions give a list


def _missing() -> list[str]:
    return [name for name in (_RENDERER, _FONT) if importlib.util.find_spec(name) is None]
