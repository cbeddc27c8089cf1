/**
 * A trust store for Java in its own format, JKS, which every Java reads. It is a header, the certificates, and a digest with a
 * password that keeps nothing secret: PKCS #12, the newer format, would need a library for the same list of certificates.
 */
import { createHash } from "node:crypto";

/** Java's own default. */
export const STORE_PASSWORD = "changeit";

const MAGIC = 0xfeedfeed;
const VERSION = 2;
const TRUSTED_CERTIFICATE = 2;
/** Part of the format. */
const WHITENER = "Mighty Aphrodite";

/** `certificates` in PEM, one each. */
export function createJavaStore(certificates: readonly string[]): Buffer {
  const entries = certificates.map((pem, index) => {
    const der = Buffer.from(pem.replace(/-----[^-]+-----|\s/g, ""), "base64");
    return Buffer.concat([
      int(TRUSTED_CERTIFICATE),
      text(`tendon-${index}`),
      // When it was made: the same for the same certificates.
      Buffer.alloc(8),
      text("X.509"),
      int(der.length),
      der,
    ]);
  });
  const store = Buffer.concat([int(MAGIC), int(VERSION), int(entries.length), ...entries]);
  const password = Buffer.from(STORE_PASSWORD, "utf16le").swap16();
  const digest = createHash("sha1").update(password).update(WHITENER).update(store).digest();
  return Buffer.concat([store, digest]);
}

function int(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(value);
  return bytes;
}

/** With its length; ASCII alone. */
function text(value: string): Buffer {
  const bytes = Buffer.alloc(2);
  bytes.writeUInt16BE(value.length);
  return Buffer.concat([bytes, Buffer.from(value, "latin1")]);
}
