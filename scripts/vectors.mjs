// Adds events signed or verified by vendors' Node libraries, and prints all of them. Called by scripts/vectors.
import crypto from "node:crypto";
import fs from "node:fs";
import { sign, verify } from "@octokit/webhooks-methods";
import "@shopify/shopify-api/adapters/node";
import { shopifyApi, ApiVersion } from "@shopify/shopify-api";
import { LinearWebhookClient } from "@linear/sdk/webhooks";
import { verifyKey } from "discord-interactions";

const vectors = JSON.parse(fs.readFileSync(process.argv[2], "utf8"));
const now = Date.now();
const body = vectors[0].body;
const json = { "content-type": "application/json" };
const sdk = (name) => `${name} ${JSON.parse(fs.readFileSync(`node_modules/${name}/package.json`)).version}`;
const put = (provider, name, headers, secret, text = body) =>
  vectors.push({ provider, sdk: sdk(name), headers: { ...json, ...headers }, secret, body: text, url: "", query: "", now_ms: now });
const mac = (key, text, encoding) => crypto.createHmac("sha256", key).update(text).digest(encoding);

const github = await sign("gh-secret", body);
if (!(await verify("gh-secret", body, github))) throw new Error("github");
put("github", "@octokit/webhooks-methods", { "x-hub-signature-256": github, "x-github-delivery": "d-1" }, "gh-secret");

const shopify = shopifyApi({
  apiKey: "k", apiSecretKey: "shp-secret", scopes: ["read_orders"], hostName: "hooks.example.com",
  apiVersion: Object.values(ApiVersion).at(-1), isEmbeddedApp: false, logger: { log: () => {} },
});
const signature = mac("shp-secret", body, "base64");
const headers = {
  "x-shopify-hmac-sha256": signature, "x-shopify-topic": "orders/create", "x-shopify-shop-domain": "a.myshopify.com",
  "x-shopify-api-version": "2026-01", "x-shopify-webhook-id": "w-1", "x-shopify-event-id": "e-1",
};
const request = { method: "POST", url: "/in/shop", headers: { ...json, ...headers } };
const checked = await shopify.webhooks.validate({ rawBody: body, rawRequest: request, rawResponse: {} });
if (!checked.valid) throw new Error(`shopify ${JSON.stringify(checked)}`);
put("shopify", "@shopify/shopify-api", headers, "shp-secret");

const issue = JSON.stringify({ action: "update", data: { id: "i-1", updatedAt: "2026-11-15T10:00:00Z" }, webhookTimestamp: now });
const linear = mac("lin-secret", issue, "hex");
if (!new LinearWebhookClient("lin-secret").verify(Buffer.from(issue), linear, now)) throw new Error("linear");
put("linear", "@linear/sdk", { "linear-signature": linear, "linear-delivery": "d-1" }, "lin-secret", issue);

const { publicKey, privateKey } = crypto.generateKeyPairSync("ed25519");
const point = publicKey.export({ format: "der", type: "spki" }).subarray(-32).toString("hex");
const stamp = String(Math.floor(now / 1000));
const discord = crypto.sign(null, Buffer.from(stamp + body), privateKey).toString("hex");
if (!(await verifyKey(body, discord, stamp, point))) throw new Error("discord");
put("discord", "discord-interactions", { "x-signature-ed25519": discord, "x-signature-timestamp": stamp }, point);

console.log(JSON.stringify(vectors, null, 1));
