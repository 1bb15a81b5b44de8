"""The service as it is deployed: by TLS, and scraped by a real Prometheus."""

from __future__ import annotations

import ipaddress
import json
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.operate.state import PIPELINE, fill
from tests.page.browsers import chromium, opened
from tests.servers import free_port, wait_until
from tests.service.client import TEXT
from tests.service.served import Served, served

pytestmark = pytest.mark.servers


def certificate(directory: Path) -> tuple[Path, Path]:
    """For 127.0.0.1, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "signoff")])
    now = datetime.now(UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        .add_extension(address, False).sign(key, hashes.SHA256())
    )  # fmt: skip
    paths = directory / "cert.pem", directory / "key.pem"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return paths


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Path]]:
    """A service with two pipelines that have received something and are stopped."""
    directory = tmp_path_factory.mktemp("tls")
    cert, key = certificate(directory)
    arguments = ("--tls-cert", str(cert), "--tls-key", str(key))
    with served(directory / "home", *arguments, trusts=cert) as service:
        for name in ("alarms", "orders"):
            state = directory / name
            state.mkdir()
            text = PIPELINE.replace("name: alarms", f"name: {name}")
            graph = fill(state, text)
            made = service.put(name, f"{text}state: {graph.state}\n", start="false")
            assert made.status_code == 201, made.text
        yield service, cert


def test_with_a_certificate_the_service_speaks_tls_only(certified: tuple[Served, Path]) -> None:
    service, _ = certified
    assert service.address.startswith("https://")
    assert service.ask("GET", "/v1/pipelines").status_code == 200
    with pytest.raises(httpx.ConnectError, match="certificate"):
        httpx.get(f"{service.address}/healthz", trust_env=False, verify=ssl.create_default_context())
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{service.address}/healthz".replace("https", "http"), trust_env=False)


def test_the_page_is_there_by_tls_with_a_cookie_that_never_goes_in_clear(
    certified: tuple[Served, Path],
) -> None:
    service, cert = certified
    trusting = ssl.create_default_context(cafile=cert)
    with httpx.Client(base_url=service.address, verify=trusting, trust_env=False) as client:
        assert client.get("/").headers["location"] == "/ui/"
        assert client.get("/ui/").headers["location"] == "/ui/login"
        answer = client.post("/ui/login", data={"token": service.token})
        assert answer.headers["location"] == "/ui/"
        cookie = answer.headers["set-cookie"].lower()
        assert {"secure", "httponly", "samesite=strict", "path=/ui/"} <= set(cookie.split("; "))
        assert "orders" in client.get("/ui/").text


def test_somebody_logs_in_finds_a_pipeline_and_drops_a_letter_in_a_browser(
    certified: tuple[Served, Path],
) -> None:
    service, _ = certified
    with chromium() as browser:
        page, said = opened(browser, ignore_https_errors=True)
        page.goto(service.address)
        page.get_by_label("Token").fill("signoff_wrong")
        page.get_by_role("button", name="Log in").click()
        assert page.get_by_role("alert").first.inner_text() == "this is not the token"
        page.get_by_label("Token").fill(service.token)
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("link", name="orders").click()
        page.wait_for_url("**/ui/pipelines/orders/")
        page.goto(f"{service.address}/ui/pipelines/orders/letters/confirm?action=drop&event=incoming/1")
        page.get_by_role("button", name="Drop").click()
        page.get_by_text("dropped").first.wait_for()
        page.goto(f"{service.address}/ui/pipelines/orders/")
        page.get_by_role("button", name="Log out").click()
        page.wait_for_url("**/ui/login")
        assert [each for each in said if "401" not in each] == []
    trail = service.ask("GET", "/v1/trail").json()["trail"]
    assert ("drop letters", "orders") in {(each["action"], each["target"]) for each in trail}


def test_readiness_names_who_is_not_ready(certified: tuple[Served, Path]) -> None:
    service, _ = certified
    service.ask("PUT", "/v1/secrets/form", json={"value": "csv"})
    text = TEXT.replace("alarms", "broken").replace("path: ./out", "path: ./out, format: '${secret:form}'")
    assert service.put("broken", text, start="false").status_code == 201
    service.ask("DELETE", "/v1/secrets/form")  # so that its run ends before it has begun
    assert service.ask("GET", "/readyz").status_code == 200
    service.ask("POST", "/v1/pipelines/broken/start")
    said = wait_until(lambda: not_ready(service), what="readiness")
    assert list(said) == ["broken"]
    service.wait_for("broken", state="failed")
    wait_until(lambda: 'no secret "form"' in (not_ready(service) or {})["broken"])
    service.ask("POST", "/v1/pipelines/broken/stop")
    service.wait_for("broken", state="stopped")
    wait_until(lambda: service.ask("GET", "/readyz").status_code == 200)
    assert service.ask("DELETE", "/v1/pipelines/broken?discard=true").status_code == 200


def not_ready(service: Served) -> dict[str, Any] | None:
    answer = service.ask("GET", "/readyz")
    return dict(answer.json()["not_ready"]) if answer.status_code == 503 else None


@pytest.fixture
def prometheus(certified: tuple[Served, Path], tmp_path: Path) -> Iterator[str]:
    """A real one, which scrapes the service every second as its docs say; its address."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip(
            "prometheus is not installed (Debian: apt-get install prometheus; scripts/set-up-prometheus)"
        )
    service, cert = certified
    made = service.ask("POST", "/v1/tokens", json={"name": "prometheus", "role": "view"}).json()
    (tmp_path / "token").write_text(made["token"])
    job = {
        "job_name": "signoff",
        "scheme": "https",
        "authorization": {"credentials_file": str(tmp_path / "token")},
        "tls_config": {"ca_file": str(cert)},
        "static_configs": [{"targets": [service.address.removeprefix("https://")]}],
    }
    config = tmp_path / "prometheus.yml"
    config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}))
    port = free_port()
    with (tmp_path / "output").open("wb") as output:
        process = subprocess.Popen(
            [program, f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'tsdb'}",
             f"--web.listen-address=127.0.0.1:{port}"],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def test_prometheus_scrapes_the_service_and_has_the_figures_of_the_account(
    certified: tuple[Served, Path], prometheus: str
) -> None:
    service, _ = certified

    def asked(query: str) -> list[dict[str, Any]]:
        try:
            answer = httpx.get(f"{prometheus}/api/v1/query", params={"query": query}, trust_env=False)
        except httpx.TransportError:
            return []
        return list(answer.json()["data"]["result"]) if answer.status_code == 200 else []

    wait_until(lambda: asked('up{job="signoff"} == 1'), what="a scrape")
    (stopped,) = asked('signoff_service_pipelines{state="stopped"}')
    assert stopped["value"][1] == "2"
    received = {each["metric"]["pipeline"]: each for each in asked("signoff_events_received_total")}
    assert set(received) == {"alarms", "orders"}
    for name, each in received.items():
        account = service.ask("GET", f"/v1/pipelines/{name}/audit").json()["sources"]
        source = account[each["metric"]["source"]]
        assert float(each["value"][1]) == source["received"] > 0
    assert time.time() - float(stopped["value"][0]) < 3600
