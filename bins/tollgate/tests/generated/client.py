"""A client that is generated from the OpenAPI document."""

import os

from tollgate_client import AuthenticatedClient
from tollgate_client.api.connections import create_connection
from tollgate_client.api.wallets import get_wallet
from tollgate_client.models import CreateConnection

client = AuthenticatedClient(base_url=os.environ["BASE"], token=os.environ["KEY"])
made = create_connection.sync(client=client, body=CreateConnection(reference_id="python", name="Ada"))
wallet = get_wallet.sync(made.wallet_id, client=client)
assert wallet.balance == "0.0000000000", wallet
refused = get_wallet.sync("wal_none", client=client)
assert refused.error.code == "wallet_not_found", refused
print("python:", made.name, wallet.balance)
