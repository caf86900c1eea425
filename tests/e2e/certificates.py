"""A certificate authority of a test's own, as Docker's TLS asks for it: ca.pem, cert.pem and key.pem in a folder."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID as Usage
from cryptography.x509.oid import NameOID

Key = ec.EllipticCurvePrivateKey


class Authority:
    """Signs for one server at 127.0.0.1 and for its clients."""

    def __init__(self, name: str) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = self._builder(self.name, self.key).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True).sign(self.key, hashes.SHA256())

    def issue(self, folder: Path, name: str) -> Path:
        """The folder, with a certificate for server and client and the authority's own in it."""
        folder.mkdir()
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = (self._builder(subject, key)
                .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
                .add_extension(x509.ExtendedKeyUsage([Usage.SERVER_AUTH, Usage.CLIENT_AUTH]), critical=False)
                .sign(self.key, hashes.SHA256()))
        pem = serialization.Encoding.PEM
        (folder / "ca.pem").write_bytes(self.certificate.public_bytes(pem))
        (folder / "cert.pem").write_bytes(made.public_bytes(pem))
        (folder / "key.pem").touch(mode=0o600)
        (folder / "key.pem").write_bytes(key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
        return folder

    def _builder(self, subject: x509.Name, key: Key) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (x509.CertificateBuilder().subject_name(subject).issuer_name(self.name).public_key(key.public_key())
                .serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(hours=1))
                .not_valid_after(now + timedelta(days=1)))
