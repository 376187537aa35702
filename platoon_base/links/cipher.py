"""The encryption of what passes between hosts: AES-256-GCM, with a key for each connection and direction."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any, Callable

from platoon_base.errors import BackendUnavailableError

__all__ = ["TAG_BYTES", "AlteredError", "Cipher", "derive_keys", "require_cipher"]

TAG_BYTES = 16  # that follow each encrypted record
_KEY_BYTES = 32
_LABEL = b"platoon data between hosts, version 1"


class AlteredError(Exception):
    """A record is not the one that was sent next: it was changed, repeated, left out, or sent by a stranger."""


class Cipher:
    """Encrypts, or decrypts, the records of one direction of one connection, in their order.

    The number of a record is its nonce, so a record that is repeated, left out or moved is refused like a changed one.
    Never use two of these with one key to encrypt.

    Parameters
    ----------
    key : bytes
        32 of them.
    in_place : bool
        Whether to use the functions that write into memory of the caller, which versions before 47 do not have.

    Raises
    ------
    BackendUnavailableError
        If the package ``cryptography`` is missing.
    """

    def __init__(self, key: bytes, in_place: bool = True) -> None:
        self._aead: Any = require_cipher()(key)
        self._number = 0
        there = self._aead if in_place else None
        self._encrypt_into: Callable[..., Any] | None = getattr(there, "encrypt_into", None)
        self._decrypt_into: Callable[..., Any] | None = getattr(there, "decrypt_into", None)

    def _nonce(self) -> bytes:
        self._number += 1
        return self._number.to_bytes(12, "big")

    def seal(self, header: bytes, payload: memoryview | bytes, out: memoryview) -> None:
        """Encrypt a payload.

        Parameters
        ----------
        header : bytes
            Sent in the clear, and protected against changes.
        payload : buffer
        out : memoryview
            Of ``len(payload) + TAG_BYTES`` bytes.
        """
        if self._encrypt_into is None:
            out[:] = self._aead.encrypt(self._nonce(), payload, header)
        else:
            self._encrypt_into(self._nonce(), payload, header, out)

    def open(self, header: bytes, sealed: memoryview, out: memoryview) -> None:
        """Decrypt a payload into ``out``, of ``len(sealed) - TAG_BYTES`` bytes; raises `AlteredError`."""
        from cryptography.exceptions import InvalidTag

        try:
            if self._decrypt_into is None or not len(out):
                out[:] = self._aead.decrypt(self._nonce(), sealed, header)
            else:
                self._decrypt_into(self._nonce(), sealed, header, out)
        except InvalidTag:
            raise AlteredError from None


def require_cipher() -> Any:
    """Return the class that encrypts.

    Raises
    ------
    BackendUnavailableError
        If the package ``cryptography`` is missing.
    """
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as exc:
        raise BackendUnavailableError(
            f"data between hosts are encrypted, and the package cryptography cannot be imported ({exc}): pip install "
            '"platoon-plugins[hosts]" on every host, or trust the network and start the job with --no-encryption'
        ) from exc
    return AESGCM


def derive_keys(secret: bytes, transcript: bytes) -> tuple[bytes, bytes]:
    """Derive the keys of a connection: for what its caller sends, and for what its listener sends (HKDF-SHA256).

    Parameters
    ----------
    secret : bytes
        That both know and no stranger does.
    transcript : bytes
        What both have said at the start of the connection, with a random number of each.
    """
    pseudorandom = hmac.new(transcript, secret, hashlib.sha256).digest()
    first = hmac.new(pseudorandom, _LABEL + b"\1", hashlib.sha256).digest()
    second = hmac.new(pseudorandom, first + _LABEL + b"\2", hashlib.sha256).digest()
    return first[:_KEY_BYTES], second[:_KEY_BYTES]
