"""Certificates as a cluster has them: of an authority, in files that a kubelet exchanges all at once."""

import datetime
import ipaddress
import ssl
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = datetime.timedelta(days=1)
SERVER, CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH


class Issued:
    """A certificate and its key, PEM."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self.x509 = certificate
        self._key = key
        self.certificate = certificate.public_bytes(Encoding.PEM)
        self.key = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def locked(self, password: str) -> bytes:
        """Return the key under a password, PEM."""
        algorithm = BestAvailableEncryption(password.encode())
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, algorithm)

    def written(self, folder: Path) -> tuple[Path, Path]:
        """Write both into a folder, and return the files."""
        folder.mkdir(parents=True, exist_ok=True)
        files = folder / "tls.crt", folder / "tls.key"
        files[0].write_bytes(self.certificate)
        files[1].write_bytes(self.key)
        return files


class Authority:
    """Issues certificates that its own one vouches for."""

    def __init__(self, name: str = "a test's authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        basic = x509.BasicConstraints(ca=True, path_length=None)
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        own = self._begun(self._name, self._key, days=1).add_extension(basic, critical=True)
        identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        own = own.add_extension(usage, critical=True).add_extension(identifier, critical=False)
        self.certificate = own.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)

    def _begun(self, name: x509.Name, key: ec.EllipticCurvePrivateKey, days: float) -> x509.CertificateBuilder:
        ends = datetime.datetime.now(datetime.UTC).replace(microsecond=0) + days * DAY
        number = x509.random_serial_number()
        return x509.CertificateBuilder(self._name, name, key.public_key(), number, ends - 100 * DAY, ends)

    def issue(
        self,
        *names: str,
        usages: Sequence[x509.ObjectIdentifier] = (SERVER,),
        days: float = 1,
        loopback: bool = True,
    ) -> Issued:
        """Return a new certificate for these names, and for the loopback address."""
        key = ec.generate_private_key(ec.SECP256R1())
        address = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))] if loopback else []
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test")])
        alternatives = x509.SubjectAlternativeName([*map(x509.DNSName, names), *address])
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        made = (
            self._begun(subject, key, days)
            .add_extension(alternatives, critical=False)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(authority, critical=False)
        )
        return Issued(made.sign(self._key, hashes.SHA256()), key)

    def written(self, folder: Path) -> Path:
        """Write its own certificate into a folder, and return the file."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "ca.crt").write_bytes(self.certificate)
        return folder / "ca.crt"

    def trusted(self, own: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """Return what a client needs who trusts this authority, and shows a certificate of its ``own``."""
        context = ssl.create_default_context(cadata=self.certificate.decode())
        if own:
            context.load_cert_chain(*own)
        return context


class Mounted:
    """A folder that a kubelet keeps in step with a Secret: both files change at once."""

    def __init__(self, folder: Path, issued: Issued) -> None:
        self._folder = folder
        self._count = 0
        folder.mkdir(parents=True, exist_ok=True)
        self.put(issued)
        self.certificate, self.key = folder / "tls.crt", folder / "tls.key"
        for name in ("tls.crt", "tls.key"):
            (folder / name).symlink_to(Path("..data", name))

    def put(self, issued: Issued) -> None:
        """Exchange what is in it."""
        self._count += 1
        version = self._folder / f"..version_{self._count}"
        issued.written(version)
        link = self._folder / "..data_new"
        link.symlink_to(version.name)
        link.rename(self._folder / "..data")
