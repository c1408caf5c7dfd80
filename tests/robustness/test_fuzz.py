"""Malformed requests and schemathesis' cases against the real server; see ``scripts/fuzz``."""

from __future__ import annotations

from benchmarks.robustness import fuzz, malformed
from tests.servers import start_server
from tests.sizes import sized


def test_no_request_breaks_the_server():
    outcome = fuzz.run(sized(600, 2000), sized(2, 20), phases="fuzzing", start=start_server)
    assert outcome["wrong"] == []
    assert outcome["malformed"]["kinds"].keys() == {make.__name__ for make in malformed.MAKERS}
    # Each way of refusing was there, and requests that are right as well.
    assert outcome["malformed"]["statuses"].keys() == {
        *("400", "403", "404", "405", "413", "414", "415", "431")
    }
    assert outcome["schemathesis"]["cases"] > sized(20, 80)
    assert outcome["schemathesis"]["statuses"].keys() >= {"200", "400"}
