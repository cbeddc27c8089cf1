/** The authorities that the machine trusts, as its administrator left them: Node has a list of its own and does not look there. */
import { readFileSync } from "node:fs";

/** Where distributions keep them, in one file. */
const BUNDLES: readonly string[] = [
  "/etc/ssl/certs/ca-certificates.crt", // Debian, Ubuntu, Alpine, Arch
  "/etc/pki/tls/certs/ca-bundle.crt", // Fedora, Red Hat
  "/etc/ssl/ca-bundle.pem", // SUSE
  "/etc/ssl/cert.pem", // macOS, BSD
];

/** Their certificates (PEM); null where there is no such file, which means Node's own list. */
export function systemAuthorities(bundles = BUNDLES): Buffer | null {
  for (const path of bundles) {
    try {
      const pem = readFileSync(path);
      if (pem.includes("-----BEGIN CERTIFICATE-----")) return pem;
    } catch {
      // the next one
    }
  }
  return null;
}
