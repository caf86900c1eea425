// A verifier of receipts written from the DSSE 1.0.2 and in-toto Statement v1 specifications alone; Node's standard
// library only. Usage: node verify.mjs RECEIPT PUBLIC_KEY.pem LOCK_FILE [PREDICATE_TYPE]. Exits 0 and prints the
// predicate's result, or exits 1 with a reason.
import { createHash, createPublicKey, verify } from "node:crypto";
import { readFileSync } from "node:fs";

function refuse(reason) {
  console.error(`refused: ${reason}`);
  process.exit(1);
}

function decodeBase64(text) {
  if (typeof text !== "string" || !/^(?:[A-Za-z0-9+/]*|[A-Za-z0-9_-]*)={0,2}$/.test(text)) refuse("not base64");
  const bytes = Buffer.from(text, "base64");
  const plain = (value) => value.replaceAll("-", "+").replaceAll("_", "/").replace(/=+$/, "");
  if (plain(bytes.toString("base64")) !== plain(text)) refuse("base64 with a second reading");
  return bytes;
}

function preAuthenticationEncoding(type, body) {
  const typeBytes = Buffer.from(type, "utf8");
  return Buffer.concat([
    Buffer.from(`DSSEv1 ${typeBytes.length} `), typeBytes, Buffer.from(` ${body.length} `), body,
  ]);
}

function parse(bytes) {
  try {
    return JSON.parse(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes));
  } catch (error) {
    return refuse(`not JSON: ${error.message}`);
  }
}

const [receiptPath, keyPath, lockPath, predicateType] = process.argv.slice(2);
const file = parse(readFileSync(receiptPath));
const envelope = file.mediaType === undefined ? file : file.dsseEnvelope;
if (!envelope || !Array.isArray(envelope.signatures) || envelope.signatures.length === 0) refuse("no envelope");
if (typeof envelope.payloadType !== "string") refuse("no payload type");

const payload = decodeBase64(envelope.payload);
const message = preAuthenticationEncoding(envelope.payloadType, payload);
const key = createPublicKey(readFileSync(keyPath));
if (key.asymmetricKeyType !== "ed25519") refuse("not an Ed25519 key");
const signed = envelope.signatures.some((item) => verify(null, message, key, decodeBase64(item.sig)));
if (!signed) refuse("no signature of this key");

if (envelope.payloadType !== "application/vnd.in-toto+json") refuse("not an in-toto statement");
const statement = parse(payload);
if (statement._type !== "https://in-toto.io/Statement/v1") refuse("not a statement v1");
if (statement.predicateType !== (predicateType ?? "https://ninfer.dev/attestations/qualification/v1")) {
  refuse(`predicate type ${statement.predicateType}`);
}
const digest = createHash("sha256").update(readFileSync(lockPath)).digest("hex");
if (!Array.isArray(statement.subject) || statement.subject.length !== 1) refuse("not exactly one subject");
if (statement.subject[0].digest?.sha256 !== digest) refuse("the subject is another lock file");
console.log(statement.predicate.result);
