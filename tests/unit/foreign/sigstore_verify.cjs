// Verify a sigstore bundle with npm's @sigstore/verify and a pinned public key.
// Usage: node sigstore_verify.cjs NODE_MODULES BUNDLE PUBLIC_KEY.pem. Exits 0, or 1 with a reason.
const { readFileSync } = require("node:fs");
const { createPublicKey } = require("node:crypto");
const path = require("node:path");

const [modules, bundlePath, keyPath] = process.argv.slice(2);
const { bundleFromJSON } = require(path.join(modules, "@sigstore", "bundle"));
const { Verifier, toSignedEntity } = require(path.join(modules, "@sigstore", "verify"));

try {
  const bundle = bundleFromJSON(JSON.parse(readFileSync(bundlePath, "utf8")));
  const publicKey = createPublicKey(readFileSync(keyPath));
  const trust = {
    certificateAuthorities: [],
    timestampAuthorities: [],
    tlogs: [],
    ctlogs: [],
    publicKey: () => ({ publicKey, validFor: () => true }),
  };
  // No certificate and no transparency log: the key is pinned, so no witness of time is asked for.
  const verifier = new Verifier(trust, { tlogThreshold: 0, ctlogThreshold: 0, timestampThreshold: 0 });
  verifier.verify(toSignedEntity(bundle));
  console.log("verified");
} catch (error) {
  console.error(`refused: ${error.message}`);
  process.exit(1);
}
