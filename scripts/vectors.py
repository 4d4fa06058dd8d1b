"""Events signed or verified by vendors' Python libraries, as JSON on stdout. Called by scripts/vectors."""
import base64, hashlib, hmac, json, time
from importlib.metadata import version

now = int(time.time())
body = '{"id":"evt_1","event_id":"evt_1","type":"order.paid","data":{"object":{"id":"o_1"}},"text":"ünï \\u00e9 \\/"}'
raw = body.encode()
vectors = []


def put(provider, sdk, headers, secret, body=body, url="", query="", now_ms=now * 1000):
    vectors.append(
        dict(provider=provider, sdk=f"{sdk} {version(sdk)}" if sdk else None, headers=headers, secret=secret, body=body,
             url=url, query=query, now_ms=now_ms))


def mac(key, message, algorithm="sha256"):
    return hmac.new(key, message, getattr(hashlib, algorithm))


b64 = lambda data: base64.b64encode(data).decode()
json_type = {"content-type": "application/json"}

import stripe
signature = mac(b"whsec_test", f"{now}.{body}".encode()).hexdigest()
header = f"t={now},v1={signature},v0=00"
assert stripe.WebhookSignature.verify_header(body, header, "whsec_test", 300)
put("stripe", "stripe", {**json_type, "stripe-signature": header}, "whsec_test")

from slack_sdk.signature import SignatureVerifier
verifier = SignatureVerifier("8f742231b10e8888abcd99yyyzzz85a5")
signature = verifier.generate_signature(timestamp=str(now), body=raw)
put("slack", "slack_sdk", {**json_type, "x-slack-request-timestamp": str(now), "x-slack-signature": signature},
    "8f742231b10e8888abcd99yyyzzz85a5")

from twilio.request_validator import RequestValidator
validator = RequestValidator("12345")
url = "https://hooks.example.com/in/shop"
from urllib.parse import urlencode
form = {"To": "+18005551212", "From": "+14158675309", "Digits": "1234", "Body": "hi there & ünï", "CallSid": "CA1"}
put("twilio", "twilio", {"content-type": "application/x-www-form-urlencoded",
    "x-twilio-signature": validator.compute_signature(url + "?foo=1&bar=2", form)}, "12345", urlencode(form), url, "foo=1&bar=2")
with_port = "https://hooks.example.com:443/in/shop"
assert validator.validate(url, form, validator.compute_signature(with_port, form))
put("twilio", "twilio", {"content-type": "application/x-www-form-urlencoded; charset=UTF-8",
    "x-twilio-signature": validator.compute_signature(with_port, form)}, "12345", urlencode(form), url)
query = "bodySHA256=" + validator.compute_hash(body)
signature = validator.compute_signature(f"{url}?{query}", {})
assert validator.validate(f"{url}?{query}", body, signature)
put("twilio", "twilio", {**json_type, "x-twilio-signature": signature}, "12345", body, url, query)

import datetime
from standardwebhooks.webhooks import Webhook
secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
at = datetime.datetime.fromtimestamp(now, tz=datetime.timezone.utc)
signature = Webhook(secret).sign("msg_1", at, body)
headers = {"webhook-id": "msg_1", "webhook-timestamp": str(now), "webhook-signature": signature}
Webhook(secret).verify(body, headers)
put("standard-webhooks", "standardwebhooks", {**json_type, **headers}, secret)
headers["webhook-signature"] = "v1,AAAA " + signature + " v1a,BBBB"
Webhook(secret).verify(body, headers)
put("standard-webhooks", "standardwebhooks", {**json_type, **headers}, secret)

import nacl.signing
key = nacl.signing.SigningKey(bytes(range(32)))
signature = key.sign(f"msg_1.{now}.{body}".encode()).signature
put("standard-webhooks-ed25519", "PyNaCl", {**json_type, "webhook-id": "msg_1", "webhook-timestamp": str(now),
    "webhook-signature": "v1a," + b64(signature)}, "whpk_" + b64(bytes(key.verify_key)))

import svix.webhooks
signature = svix.webhooks.Webhook(secret).sign("msg_1", at, body)
for prefix in ["svix", "webhook"]:
    headers = {f"{prefix}-id": "msg_1", f"{prefix}-timestamp": str(now), f"{prefix}-signature": signature}
    svix.webhooks.Webhook(secret).verify(body, headers)
    put("svix", "svix", {**json_type, **headers}, secret)

from paddle_billing.Notifications import Secret, Verifier


class PaddleRequest:
    def __init__(self, signature):
        self.headers, self.body, self.content, self.data = {"Paddle-Signature": signature}, raw, raw, raw


signature = f"ts={now};h1=" + mac(b"pdl_ntfset_x", f"{now}:{body}".encode()).hexdigest()
assert Verifier(maximum_variance=300).verify(PaddleRequest(signature), Secret("pdl_ntfset_x"))
put("paddle", "paddle-python-sdk", {**json_type, "paddle-signature": signature}, "pdl_ntfset_x")

from square.utils.webhooks_helper import verify_signature
signature = b64(mac(b"square-key", (url + body).encode()).digest())
assert verify_signature(request_body=body, signature_header=signature, signature_key="square-key", notification_url=url)
put("square", "squareup", {**json_type, "x-square-hmacsha256-signature": signature}, "square-key", body, url)

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from sendgrid.helpers.eventwebhook import EventWebhook
private = ec.derive_private_key(123456789, ec.SECP256R1())
public = b64(private.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo))
events = '[{"sg_event_id":"a","id":"a"},{"sg_event_id":"b","id":"b"}]\r\n'
signature = b64(private.sign((str(now) + events).encode(), ec.ECDSA(hashes.SHA256())))
webhook = EventWebhook(public)
assert webhook.verify_signature(events, signature, str(now))
put("sendgrid", "sendgrid", {**json_type, "x-twilio-email-event-webhook-signature": signature,
    "x-twilio-email-event-webhook-timestamp": str(now)}, public, events)

from hubspot.utils.signature import Signature
hubspot_events = '[{"eventId":1,"subscriptionId":2,"objectId":3,"occurredAt":4}]'
stamp = str(now * 1000)
signature = Signature.get_signature(client_secret="hs-secret", request_body=hubspot_events, signature_version="v3",
    http_uri=url, http_method="POST", timestamp=stamp)
assert Signature.is_valid(signature=signature, client_secret="hs-secret", request_body=hubspot_events, http_uri=url,
    http_method="POST", signature_version="v3", timestamp=stamp)
put("hubspot", "hubspot-api-client", {**json_type, "x-hubspot-signature-v3": signature, "x-hubspot-request-timestamp": stamp},
    "hs-secret", hubspot_events, url)

# Those whose vendors have no library that verifies: made as their documentation says.
put("typeform", None, {**json_type, "typeform-signature": "sha256=" + b64(mac(b"tf", raw).digest())}, "tf")
put("zendesk", None, {**json_type, "x-zendesk-webhook-signature": b64(mac(b"zd", b"2026-11-15T10:00:00Z" + raw).digest()),
    "x-zendesk-webhook-signature-timestamp": "2026-11-15T10:00:00Z"}, "zd")
put("intercom", None, {**json_type, "x-hub-signature": "sha1=" + mac(b"ic", raw, "sha1").hexdigest()}, "ic")
put("gitlab", None, {**json_type, "x-gitlab-token": "gl-secret"}, "gl-secret")
put("postmark", None, {**json_type, "authorization": "Basic " + b64(b"user:pass")}, "user:pass")
print(json.dumps(vectors))
