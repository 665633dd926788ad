from __future__ import annotations

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.deploy.site.local_recipe import with_local_settings
from polyclinic.deploy.site.settings import SiteSettings


def test_what_the_site_decides_replaces_the_server_s() -> None:
    logged: list[str] = []
    server = {
        "federation": "/server", "method": "fedavg", "tracking": {"tensorboard": True},
        "data": {"sites": ["all"], "cache": "/etc", "cache_limit_mb": 0, "case_pattern": "(Doe)", "size": [8, 8]},
        "network": {"width": 4, "weights": "/etc/shadow"}, "engine": {"device": "cuda:7", "threads": 2},
    }  # fmt: skip
    settings = SiteSettings("north", "/data", "/home", device="cpu", encoder="/own.bin", case_pattern="(a+)")
    assert with_local_settings(server, settings, logged.append) == {
        "federation": "/data", "method": "fedavg", "tracking": {},
        "data": {"sites": ["north"], "cache": "/home/cache", "case_pattern": "(a+)", "size": [8, 8]},
        "network": {"width": 4, "weights": "/own.bin"}, "engine": {"device": "cpu", "threads": 2},
    }  # fmt: skip
    assert "is not used" in logged[0]
    for cache in ("off", "/shared"):
        chosen = with_local_settings(server, SiteSettings("north", "/data", "/home", encoder="e", cache=cache), print)
        assert chosen["data"]["cache"] == cache


def test_defaults_and_mistakes() -> None:
    logged: list[str] = []
    plain = SiteSettings("north", "/data", "/home")
    assert with_local_settings({"network": {"weights": "random"}}, plain, logged.append)["network"] == {
        "weights": "random"
    }
    assert "weights" not in with_local_settings({"network": {}}, plain, logged.append)["network"]
    assert with_local_settings({}, plain, logged.append)["engine"] == {"device": "auto"}
    assert not logged
    with pytest.raises(PolyclinicError, match="start the site with --encoder"):
        with_local_settings({"network": {"weights": "vit.bin"}}, plain, logged.append)
    with pytest.raises(PolyclinicError, match="data = 5 is not possible"):
        with_local_settings({"data": 5}, plain, logged.append)
