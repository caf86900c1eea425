"""Keys that are not in files: any Ed25519 signer of `securesystemslib` (cloud KMS, HSM, ssh-agent-like tools).

Needs the extra `kms`; imported only when a key is named by URI. Only its signing is used: envelopes, key ids and
verification stay ours, so that its reading of DSSE does not matter.
"""

import importlib
from typing import Any

from ninfer_lifecycle.receipts.errors import KeyFileError
from ninfer_lifecycle.receipts.keys import PublicKey

_INSTALL = "Install it: pip install 'ninfer[kms]'"


class ExternalSigner:
    """A securesystemslib signer as our Signer. Effects of `sign`: whatever its key store does.

    What comes back is checked against the public key: a key store that signs with another key, or hashes first, is
    found when it signs and not by whoever verifies.
    """

    def __init__(self, signer: Any, public_key: PublicKey) -> None:
        self._signer = signer
        self._public = public_key

    @property
    def public_key(self) -> PublicKey:
        """The key that verifies what `sign` returns."""
        return self._public

    def sign(self, message: bytes) -> bytes:
        """Pure Ed25519 signature of `message`. Raises KeyFileError when the key store gave anything else."""
        signature = bytes.fromhex(self._signer.sign(message).signature)
        if not self._public.verifies(signature, message):
            raise KeyFileError("the key store's signature does not verify with the public key given",
                               "Give the public key of that very key, and one that signs pure Ed25519.")
        return signature


def open_external(uri: str, public_key: PublicKey) -> ExternalSigner:
    """The signer of a securesystemslib private key URI (such as `awskms:`, `gcpkms:`, `hsm:`).

    Raises KeyFileError when the extra is not installed or the URI names no key.
    """
    try:
        library: Any = importlib.import_module("securesystemslib.signer")  # an optional extra
    except ImportError:
        raise KeyFileError("keys by URI need securesystemslib", _INSTALL) from None
    key = library.SSlibKey(public_key.keyid, "ed25519", "ed25519", {"public": public_key.spki[-32:].hex()})
    try:
        return ExternalSigner(library.Signer.from_priv_key_uri(uri, key), public_key)
    except KeyFileError:
        raise
    except Exception as error:  # noqa: BLE001  its key stores raise errors of their own kinds
        raise KeyFileError(f"{uri.split(':', maxsplit=1)[0]}: {str(error)[:160]}",
                           "Check the URI and your access to the key store.") from None
