"""All that dekrr raises on its own account."""


class DekrrError(Exception):
    """Base of every error of dekrr's own."""


class DataError(DekrrError, ValueError):
    """The rows, responses or site labels cannot be used as they are."""


class SettingsError(DekrrError, ValueError):
    """A setting, or a combination of settings, makes no sense."""


class TopologyError(DekrrError, ValueError):
    """The graph of sites cannot carry a decentralised run."""


class MessageError(DekrrError):
    """A message is not what the protocol expects at this point."""


class ModelFileError(DekrrError, ValueError):
    """A file is not a model that this version can read."""
