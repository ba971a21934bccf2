"""dekrr: federated learning on tables, for sites that cannot pool their rows.

Names are imported when they are first used, so that `import dekrr` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import model_selection as model_selection
    from . import plot as plot
    from .errors import DataError as DataError
    from .errors import DekrrError as DekrrError
    from .errors import MessageError as MessageError
    from .errors import ModelFileError as ModelFileError
    from .errors import SettingsError as SettingsError
    from .errors import TopologyError as TopologyError
    from .estimators import DeKRRClassifier as DeKRRClassifier
    from .estimators import DeKRRRegressor as DeKRRRegressor
    from .features import FeatureMap as FeatureMap
    from .kernels import Kernel as Kernel
    from .lab.baselines import AllReduceRegressor as AllReduceRegressor
    from .lab.baselines import CentralizedKRR as CentralizedKRR
    from .lab.baselines import CentralizedRFF as CentralizedRFF
    from .lab.baselines import COKERegressor as COKERegressor
    from .lab.baselines import DKLARegressor as DKLARegressor
    from .lab.baselines import LocalRegressor as LocalRegressor
    from .lab.comparing import compare as compare
    from .metrics import rse as rse
    from .model import SiteModel as SiteModel
    from .model import load as load
    from .selection import Chooser as Chooser
    from .selection.transformers import EnergySelector as EnergySelector
    from .selection.transformers import GreedySelector as GreedySelector
    from .selection.transformers import LeverageSelector as LeverageSelector
    from .selection.transformers import PlainSelector as PlainSelector
    from .selection.transformers import SurrogateSelector as SurrogateSelector
    from .settings import DifferentialPrivacy as DifferentialPrivacy
    from .solvers import Chebyshev as Chebyshev
    from .solvers import Jacobi as Jacobi
    from .solvers import Solver as Solver

_HOMES = {
    "errors": "DataError DekrrError MessageError ModelFileError SettingsError TopologyError",
    "estimators": "AllReduceRegressor COKERegressor CentralizedKRR CentralizedRFF DKLARegressor DeKRRClassifier "
    "DeKRRRegressor LocalRegressor",
    "features": "FeatureMap",
    "kernels": "Kernel",
    "lab.comparing": "compare",
    "metrics": "rse",
    "model": "SiteModel load",
    "selection": "Chooser",
    "selection.transformers": "EnergySelector GreedySelector LeverageSelector PlainSelector SurrogateSelector",
    "settings": "DifferentialPrivacy",
    "solvers": "Chebyshev Jacobi Solver",
}
_MODULES = ["model_selection", "plot"]
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = sorted([*_HOME_OF, *_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("dekrr")
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
