"""The encryption of data between hosts: AES-256-GCM, with a key per connection and direction."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any, Callable

from platoon_base.errors import BackendUnavailableError

TAG_BYTES = 16  # Bytes after each encrypted record.
_KEY_BYTES = 32
_LABEL = b"platoon data between hosts, version 1"


class AlteredError(Exception):
    """A record is not the peer's next one: it was changed, repeated, left out or forged."""


class Cipher:
    """Encrypts or decrypts the records of one direction of one connection, in order.

    The number of a record is its nonce, so repeated, missing or reordered records are refused like
    changed ones. Never encrypt with two ciphers of the same key. The key has 32 bytes. ``in_place``
    encrypts into the caller's memory if ``cryptography`` is version 47 or later.
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
        """Encrypt a payload into ``out``, which has `TAG_BYTES` more; authenticate the header."""
        if self._encrypt_into is None:
            out[:] = self._aead.encrypt(self._nonce(), payload, header)
        else:
            self._encrypt_into(self._nonce(), payload, header, out)

    def open(self, header: bytes, sealed: memoryview, out: memoryview) -> None:
        """Decrypt into ``out``, which has `TAG_BYTES` less; raises `AlteredError`."""
        from cryptography.exceptions import InvalidTag

        try:
            if self._decrypt_into is None or not len(out):
                out[:] = self._aead.decrypt(self._nonce(), sealed, header)
            else:
                self._decrypt_into(self._nonce(), sealed, header, out)
        except InvalidTag:
            raise AlteredError from None


class KeyExchange:
    """A key for one connection (X25519): who learns the job's key later cannot decrypt it."""

    def __init__(self) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        self._own = X25519PrivateKey.generate()
        self.public: bytes = self._own.public_key().public_bytes_raw()

    def shared(self, public: bytes) -> bytes:
        """Return the secret shared with the owner of another key; raises `ValueError`."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        return self._own.exchange(X25519PublicKey.from_public_bytes(public))


def require_cipher() -> Any:
    """Return the class that encrypts; raises `BackendUnavailableError` if it is not installed."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as exc:
        raise BackendUnavailableError(
            "messages between hosts are encrypted, which needs the package cryptography, and it "
            f'cannot be imported ({exc}): pip install "platoon-plugins[hosts]" on every host'
        ) from exc
    return AESGCM


def derive_keys(secret: bytes, transcript: bytes) -> tuple[bytes, bytes]:
    """Derive keys by HKDF-SHA256: for data from the caller and from the listener."""
    pseudorandom = hmac.new(transcript, secret, hashlib.sha256).digest()
    first = hmac.new(pseudorandom, _LABEL + b"\1", hashlib.sha256).digest()
    second = hmac.new(pseudorandom, first + _LABEL + b"\2", hashlib.sha256).digest()
    return first[:_KEY_BYTES], second[:_KEY_BYTES]
