"""Why a receipt, a key or a keyring is not taken. All of them are refusals with advice, never crashes."""

from ninfer_lifecycle.errors import ExitCode, NinferError, RefusedError


class MalformedError(RefusedError):
    """Bytes that are not the document that they should be."""


class UntrustedError(RefusedError):
    """A signature, a key or a keyring that trust does not reach."""


class KeyFileError(NinferError):
    """A key file that cannot be made, read or used."""

    exit_code = ExitCode.USAGE


class PassphraseNeededError(KeyFileError):
    """A private key file that opens only with its passphrase."""


class StoreError(NinferError):
    """The store could not take a receipt: another one stands at its place in the chain."""

    exit_code = ExitCode.INCONCLUSIVE
