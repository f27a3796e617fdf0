"""Figures of comparisons against SciPy's."""

import subprocess
import sys

import pytest
from scipy import special

from autoloss.comparison.table import find_quantile


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 8, 9, 30, 31, 1000])
@pytest.mark.parametrize("share", [0.5, 0.6, 0.95, 0.975, 0.9999, 1 - 1e-6])
def test_quantiles_of_students_t_are_those_of_scipy(freedom, share):
    # Of one degree of freedom at 1 - 1e-6 the quantile is 318,310, and its last digits depend on the share's.
    assert find_quantile(share, freedom) == pytest.approx(special.stdtrit(freedom, share), rel=1e-9, abs=1e-12)


def test_quantiles_need_no_scipy_whose_import_takes_longer_than_all_else_that_top_does():
    program = "import sys; from autoloss.comparison.table import find_quantile as f; f(0.975, 4); assert 'scipy' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
