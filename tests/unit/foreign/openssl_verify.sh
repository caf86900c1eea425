#!/bin/sh
# Verify one DSSE signature with OpenSSL alone: openssl_verify.sh PUBLIC_KEY.pem PAE_FILE SIGNATURE_FILE
# The pre-authentication encoding is the message itself; Ed25519 hashes it inside, hence -rawin.
set -eu
exec openssl pkeyutl -verify -pubin -inkey "$1" -rawin -in "$2" -sigfile "$3"
