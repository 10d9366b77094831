// A client whose types are generated from the OpenAPI document.
import createClient from "openapi-fetch";
import type { paths } from "./schema.js";

const { BASE, KEY } = process.env;
const client = createClient<paths>({ baseUrl: BASE, headers: { Authorization: `Bearer ${KEY}` } });

const made = await client.POST("/v1/connections", { body: { reference_id: "typescript", name: "Ada" } });
if (!made.data) throw new Error(JSON.stringify(made.error));
const path = { id: made.data.wallet_id };
const credited = await client.POST("/v1/wallets/{id}/credits", { params: { path }, body: { amount: "5" } });
if (credited.data?.balance_after !== "5.0000000000") throw new Error(JSON.stringify(credited));
const wallet = await client.GET("/v1/wallets/{id}", { params: { path } });
if (wallet.data?.available !== "5.0000000000") throw new Error(JSON.stringify(wallet));
const refused = await client.GET("/v1/wallets/{id}", { params: { path: { id: "wal_none" } } });
if (refused.error?.error.code !== "wallet_not_found") throw new Error(JSON.stringify(refused));
console.log("typescript:", made.data.name, wallet.data.balance);
