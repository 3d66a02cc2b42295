"""What a control plane and its clients prove themselves with: made for one run, in its folder."""

import secrets
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from shoal_local.apiserver.credentials import make_certificates

ADMIN, CONTROLLERS, SCHEDULER = "admin", "system:kube-controller-manager", "system:kube-scheduler"
GROUPS = {ADMIN: "system:masters", CONTROLLERS: "", SCHEDULER: ""}


@dataclass(frozen=True)
class Credentials:
    """Files."""

    folder: Path

    @classmethod
    def make(cls, folder: Path, url: str, addresses: tuple[str, ...]) -> "Credentials":
        """Make all of them for an API server at ``url``, which is reached at these addresses."""
        made = cls(folder / "credentials")
        made.folder.mkdir(mode=0o700)
        certificates = make_certificates(addresses)
        made.authority.write_text(certificates.authority)
        made.certificate.write_text(certificates.certificate)
        made.key.write_text(certificates.key)
        account_key = ec.generate_private_key(ec.SECP256R1())
        made.account_key.write_bytes(
            account_key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
        )
        tokens = {user: secrets.token_hex(16) for user in GROUPS}
        made.tokens.write_text("".join(f'{tokens[user]},{user},{user},"{GROUPS[user]}"\n' for user in GROUPS))
        for user, token in tokens.items():
            made.kubeconfig(user).write_text(yaml.safe_dump(made._kubeconfig(url, token)))
        return made

    @property
    def authority(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def certificate(self) -> Path:
        return self.folder / "apiserver.pem"

    @property
    def key(self) -> Path:
        return self.folder / "apiserver-key.pem"

    @property
    def account_key(self) -> Path:
        """Return the key that signs service accounts' tokens."""
        return self.folder / "service-accounts-key.pem"

    @property
    def tokens(self) -> Path:
        return self.folder / "tokens.csv"

    def kubeconfig(self, user: str) -> Path:
        return self.folder / f"{user.rpartition(':')[2]}.kubeconfig"

    def _kubeconfig(self, url: str, token: str) -> dict[str, object]:
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "e2e", "cluster": {"server": url, "certificate-authority": str(self.authority)}}],
            "users": [{"name": "e2e", "user": {"token": token}}],
            "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": "e2e"}}],
            "current-context": "e2e",
        }
