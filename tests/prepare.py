"""Get all servers that tests start: `make test` does so first, as two processes of tests must not install at once."""

from tests.servers import install
from tests.storages import azurite

if __name__ == "__main__":
    install()
    azurite()
