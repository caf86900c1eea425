"""Foreign verifiers: OpenSSL, a Node script written from the specifications, npm's @sigstore/verify.

They agree with ours on the good and on the bad, as far as each looks. npm installs into NINFER_NPM_CACHE_DIR (or a
folder of the user's cache) through whatever registry npm is configured for; where it cannot, the test fails.
"""

import base64
import dataclasses
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from needed import needed
from receipt_cases import LOCK, check, honest_evidence, is_fork, receipt, signer, spoil

from ninfer_lifecycle.receipts import bundle, dsse
from ninfer_lifecycle.receipts.canonical import canonical

FOREIGN = Path(__file__).parent / "foreign"
GOOD = receipt(limitations=("Grüße \u20ac \U0001f600 \u2028",))
PAYLOAD = dsse.decode(dsse.parse_envelope(GOOD.files[GOOD.receipt_name])).payload


def run(*argv: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(item) for item in argv], capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key.pub"
    path.write_bytes(signer(1).public_key.pem())
    return path


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "a.lock.json"
    path.write_bytes(LOCK)
    return path


@pytest.fixture(scope="session")
def node_modules() -> Path:
    """@sigstore/verify 3.1.1 with its dependencies, installed once and kept."""
    base = os.environ.get("NINFER_NPM_CACHE_DIR") or Path.home() / ".cache" / "ninfer-tests"
    folder = Path(base) / "sigstore-verify-3.1.1"
    if not (folder / "node_modules" / "@sigstore" / "verify" / "package.json").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text('{"name":"foreign-verifier","private":true}\n')
        done = subprocess.run([needed("npm"), "install", "--no-audit", "--no-fund", "@sigstore/verify@3.1.1"],
                              cwd=folder, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
    version = json.loads((folder / "node_modules" / "@sigstore" / "verify" / "package.json").read_text())["version"]
    assert version == "3.1.1"
    return folder / "node_modules"


def openssl(envelope: dsse.Envelope, key: Path, folder: Path) -> bool:
    (folder / "pae").write_bytes(envelope.pae())
    (folder / "sig").write_bytes(envelope.signatures[0].sig)
    needed("openssl")
    return run("sh", FOREIGN / "openssl_verify.sh", key, folder / "pae", folder / "sig").returncode == 0


def node(raw: bytes, key: Path, lock: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "receipt.json").write_bytes(raw)
    return run(needed("nodejs", "node"), FOREIGN / "verify.mjs", folder / "receipt.json", key, lock)


def sigstore(raw: bytes, key: Path, folder: Path, modules: Path) -> bool:
    (folder / "bundle.json").write_bytes(raw)
    done = run(needed("nodejs", "node"), FOREIGN / "sigstore_verify.cjs", modules, folder / "bundle.json", key)
    assert done.returncode == 0 or "refused:" in done.stderr, done.stderr
    return done.returncode == 0


def test_all_verifiers_agree_that_a_good_receipt_is_good(
    key: Path, lock: Path, tmp_path: Path, node_modules: Path
) -> None:
    raw, bundled = GOOD.files[GOOD.receipt_name], GOOD.files[GOOD.bundle_name]
    assert check(GOOD).receipt is not None
    assert openssl(dsse.decode(dsse.parse_envelope(raw)), key, tmp_path)
    for file in (raw, bundled):
        done = node(file, key, lock, tmp_path)
        assert (done.returncode, done.stdout.strip()) == (0, "PASSED"), done.stderr
    assert sigstore(bundled, key, tmp_path, node_modules)


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_all_verifiers_agree_that_changed_bytes_are_bad(
    key: Path, lock: Path, tmp_path: Path, node_modules: Path
) -> None:
    good = dsse.decode(dsse.parse_envelope(GOOD.files[GOOD.receipt_name]))
    signature = good.signatures[0]
    for changed in (
        dataclasses.replace(good, payload=flip(good.payload, len(good.payload) // 2)),
        dataclasses.replace(good, payload_type="application/vnd.in-toto+jsoN"),
        dataclasses.replace(good, signatures=(dataclasses.replace(signature, sig=flip(signature.sig, 5)),)),
        dataclasses.replace(good, signatures=(dataclasses.replace(signature, sig=flip(signature.sig, 60)),)),
    ):
        raw, bundled = dsse.encode(changed), bundle.encode_bundle(changed)
        assert check(GOOD, raw=raw).receipt is None
        assert check(GOOD, raw=bundled).receipt is None
        assert not openssl(changed, key, tmp_path)
        assert node(raw, key, lock, tmp_path).returncode == 1
        assert not sigstore(bundled, key, tmp_path, node_modules)


def test_all_verifiers_refuse_the_key_of_a_stranger(lock: Path, tmp_path: Path, node_modules: Path) -> None:
    stranger = tmp_path / "stranger.pub"
    stranger.write_bytes(signer(2).public_key.pem())
    raw = GOOD.files[GOOD.receipt_name]
    assert not openssl(dsse.decode(dsse.parse_envelope(raw)), stranger, tmp_path)
    assert node(raw, stranger, lock, tmp_path).returncode == 1
    assert not sigstore(GOOD.files[GOOD.bundle_name], stranger, tmp_path, node_modules)


def _signed(change: Callable[[dict[str, Any]], None]) -> bytes:
    value = json.loads(PAYLOAD)
    change(value)
    return dsse.encode(dsse.sign(dsse.IN_TOTO, canonical(value), [signer(1)]))


@pytest.mark.parametrize("change", [
    lambda s: s.update(predicateType="https://in-toto.io/attestation/test-result/v0.1"),
    lambda s: s.update(_type="https://in-toto.io/Statement/v0.1"),
    lambda s: s["subject"].append({"name": "b", "digest": {"sha256": "0" * 64}}),
    lambda s: s["subject"][0]["digest"].update(sha256="0" * 64),
    lambda s: s.update(subject=[]),
])
def test_the_node_verifier_agrees_on_statements_that_are_signed_and_wrong(
    change: Callable[[dict[str, Any]], None], key: Path, lock: Path, tmp_path: Path
) -> None:
    raw = _signed(change)
    assert check(GOOD, raw=raw).receipt is None
    assert node(raw, key, lock, tmp_path).returncode == 1


def test_both_verifiers_read_other_tools_envelopes(key: Path, lock: Path, tmp_path: Path) -> None:
    """URL-safe base64, no keyid, an extra member, white space: as DSSE allows."""
    value = json.loads(GOOD.files[GOOD.receipt_name])
    payload = base64.urlsafe_b64encode(base64.b64decode(value["payload"])).decode()
    signature = base64.urlsafe_b64encode(base64.b64decode(value["signatures"][0]["sig"])).decode()
    raw = json.dumps({"payload": payload, "payloadType": value["payloadType"], "more": 1,
                      "signatures": [{"sig": signature}]}, indent=2).encode()
    assert check(GOOD, raw=raw).receipt is not None
    assert node(raw, key, lock, tmp_path).returncode == 0


def test_a_failed_receipt_reads_as_failed_everywhere(key: Path, lock: Path, tmp_path: Path) -> None:
    failing = receipt(spoil(honest_evidence(), is_fork(480, 0, 1), cached_tokens=0, reused_tokens=0,
                            computed_tokens=538))
    done = node(failing.files[failing.receipt_name], key, lock, tmp_path)
    assert done.stdout.strip() == "FAILED"
    assert check(failing).receipt is None


def test_openssl_computes_the_key_id_that_we_do(key: Path, tmp_path: Path) -> None:
    der = tmp_path / "key.der"
    assert run(needed("openssl"), "pkey", "-pubin", "-in", key, "-outform", "DER", "-out", der).returncode == 0
    digest = run(needed("openssl"), "dgst", "-sha256", "-r", der).stdout.split()[0]
    assert digest == signer(1).public_key.keyid
