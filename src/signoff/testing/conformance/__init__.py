"""What the contracts ask, as tests for pytest: of every type that comes with Signoff, and of yours.

    from signoff.testing import SinkConformance, SinkTarget

    class TestAcme(SinkConformance):
        @pytest.fixture
        def target(self, tmp_path):
            return AcmeTarget(tmp_path)         # a SinkTarget: the sink, and a way to read what it holds

    sinks         SinkConformance, SinkTarget
    sources       SourceConformance, SourceOffer
    transforms    TransformConformance, TransformExample
    rows          rows to write, and the way back from what a sink has made of them

Only these modules need pytest; nothing that runs a pipeline imports them.
"""

import pytest

pytest.register_assert_rewrite(  # so that what fails says what was compared
    *(f"{__name__}.{module}" for module in ("described", "rows", "sinks", "sources", "transforms"))
)
