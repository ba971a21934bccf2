"""Readers of the data sets in their publishers' formats: archives, or the unpacked files."""

import fnmatch
import io
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataError
from ...rules import is_number
from .catalogue import DataSource
from .loading import Dataset, import_pandas

_ARCHIVES = (".zip", ".tgz", ".tar.gz", ".tar")
_HOUSES = ["MedInc", "HouseAge", "TotalRooms", "TotalBedrooms", "Population", "Households", "Latitude", "Longitude"]
_WIND = ["N", "NNE", "NE", "ENE", "E", "ESE", "SE", "SSE", "S", "SSW", "SW", "WSW", "W", "WNW", "NW", "NNW"]
_BUZZ_TWITTER = ["NCD", "AI", "AS_NA", "BL", "NAC", "AS_NAC", "CS", "AT", "NA", "ADL", "NAD"]
_BUZZ_TOMS = ["NCD", "BL", "NAD", "AI", "NAC", "ND", "CS", "AT", "NA", "ADL", "AS_NA", "AS_NAC"]


def read_original(name: str, entry: DataSource, folder: Path) -> Dataset | None:
    """Return the data set of this name from its original files under `folder`, or None if there are none.

    They are the entry's archive, or its unpacked members.
    """
    found = sorted(_find(folder, entry))
    if not found:
        return None
    try:
        table = _READERS[name](found)
    except (KeyError, ValueError, IndexError) as error:
        raise DataError(
            f"{folder}: {', '.join(n for n, _ in found)} is not the {name} of {entry.url}: {error}"
        ) from None
    sites = table.pop("node").to_numpy() if "node" in table else None
    y = table.pop("y").to_numpy(dtype=np.float64)
    return Dataset(name, table.to_numpy(dtype=np.float64), y, tuple(map(str, table.columns)), sites)


def _find(folder: Path, entry: DataSource) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of each member: from unpacked files, or, if there are none, from the archive."""
    wanted = [path for path in sorted(folder.rglob("*")) if path.is_file() and _is_member(path.name, entry)]
    if wanted:
        yield from ((path.name, path.read_bytes()) for path in wanted)
        return
    archive = next((path for path in folder.rglob(entry.archive)), None)
    if archive is not None:
        yield from _unpack(archive.name, archive.read_bytes(), entry)


def _is_member(name: str, entry: DataSource) -> bool:
    return any(fnmatch.fnmatch(Path(name).name, pattern) for pattern in entry.members)


def _unpack(name: str, data: bytes, entry: DataSource) -> Iterator[tuple[str, bytes]]:
    """Yield the members in an archive, and in archives inside it."""
    for inner, content in _contents(name, data):
        if inner.endswith(_ARCHIVES):
            yield from _unpack(inner, content, entry)
        elif _is_member(inner, entry) and not Path(inner).name.startswith("._"):
            yield Path(inner).name, content


def _contents(name: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    try:
        if name.endswith(".zip"):
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                for inner in archive.namelist():
                    yield inner, archive.read(inner)
        else:
            with tarfile.open(fileobj=io.BytesIO(data)) as tar:
                for member in tar:
                    stream = tar.extractfile(member)
                    if stream is not None:
                        yield member.name, stream.read()
    except (zipfile.BadZipFile, tarfile.TarError) as error:
        raise DataError(f"{name} is damaged ({error}); fetch it again") from None


Files = list[tuple[str, bytes]]


def _houses(files: Files) -> Any:
    pd = import_pandas()
    name, data = files[0]
    if name == "cal_housing.data":
        order = [7, 2, 3, 4, 5, 6, 1, 0, 8]
        table = pd.read_csv(io.BytesIO(data), header=None)[order]
    elif name == "cadata":
        rows = [line.split() for line in data.decode().splitlines() if line.strip()]
        table = pd.DataFrame([[*(float(cell.split(":")[1]) for cell in row[1:]), float(row[0])] for row in rows])
    else:
        numbers = [line.split() for line in data.decode("latin-1").splitlines()]
        rows = [line for line in numbers if len(line) == 9 and is_number(line[0])]
        table = pd.DataFrame(np.array(rows, dtype=float)[:, [*range(1, 9), 0]])
    table.columns = [*_HOUSES, "y"]
    return table


def _airquality(files: Files) -> Any:
    pd = import_pandas()
    table = pd.read_csv(io.BytesIO(files[0][1]), sep=";", decimal=",").dropna(axis="columns", how="all")
    table = table.dropna(how="all")
    hours = table.pop("Time").str.split(".").str[0].astype(float)
    y = table.pop("PT08.S5(O3)")
    table = table.drop(columns="Date")
    names = [name.replace("(", "_").replace(")", "").replace(".", "_") for name in table.columns]
    table.columns = pd.Index(names)
    table.insert(0, "time_of_day", hours / 24)
    return table.assign(y=y)


def _energy(files: Files) -> Any:
    table = import_pandas().read_csv(io.BytesIO(files[0][1]))
    y = table.pop("Appliances")
    return table.drop(columns="date").assign(y=y)


def _buzz(files: Files, kinds: list[str]) -> Any:
    table = import_pandas().read_csv(io.BytesIO(files[0][1]), header=None)
    steps, rest = divmod(table.shape[1] - 1, len(kinds))
    if rest:
        raise ValueError(f"{table.shape[1]} columns")
    table.columns = [*(f"{kind}_{step}" for kind in kinds for step in range(steps)), "y"]
    return table


def _wave(files: Files) -> Any:
    pd = import_pandas()
    table = pd.concat([pd.read_csv(io.BytesIO(data)) for _, data in files], ignore_index=True)
    return table.rename(columns={"Total_Power": "y"}).copy()


def _beijing(files: Files) -> Any:
    pd = import_pandas()
    table = pd.concat([pd.read_csv(io.BytesIO(data)) for _, data in files], ignore_index=True)
    angle = table["wd"].map({name: 2 * np.pi * i / len(_WIND) for i, name in enumerate(_WIND)})
    day = pd.to_datetime(table[["year", "month", "day"]]).dt.day_of_year
    plain = table[["SO2", "NO2", "CO", "O3", "TEMP", "PRES", "DEWP", "RAIN", "WSPM"]]
    complete = plain.assign(
        wd_cos=np.cos(angle),
        wd_sin=np.sin(angle),
        hour=table["hour"],
        day_of_year=day,
        year=table["year"],
        y=table["PM2.5"],
        node=table["station"],
    )
    return complete.dropna()


_READERS = {
    "houses": _houses,
    "airquality": _airquality,
    "energy": _energy,
    "twitter": lambda files: _buzz(files, _BUZZ_TWITTER),
    "tomshardware": lambda files: _buzz(files, _BUZZ_TOMS),
    "wave": _wave,
    "beijing12": _beijing,
}
