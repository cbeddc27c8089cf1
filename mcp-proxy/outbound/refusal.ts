/** Why the proxy does not go where it was asked to. Messages name hosts and addresses, never a URL's path or query. */

export type OutboundReason =
  /** The URL itself: its scheme, a user in it, a port. */
  | "bad_url"
  /** The rules of the platform, or of the installation. */
  | "address_not_allowed"
  | "host_denied"
  | "plain_http"
  | "not_resolved"
  | "unreachable"
  | "redirect_refused";

/** What Node says of certificates that no authority which is trusted has signed. */
const UNTRUSTED = new Set([
  "CERT_UNTRUSTED",
  "DEPTH_ZERO_SELF_SIGNED_CERT",
  "SELF_SIGNED_CERT_IN_CHAIN",
  "UNABLE_TO_GET_ISSUER_CERT",
  "UNABLE_TO_GET_ISSUER_CERT_LOCALLY",
  "UNABLE_TO_VERIFY_LEAF_SIGNATURE",
]);

/** Nothing of the far side's is repeated: a code where there is one, and what to do where that is known. */
export function notReached(where: string, code: string | undefined, otherwise: string): OutboundRefusal {
  const hint =
    code !== undefined && UNTRUSTED.has(code)
      ? " (its certificate is of no authority that the proxy trusts; TENDON_PROXY_UPSTREAM_CA_FILE adds some)"
      : "";
  return new OutboundRefusal("unreachable", `${where} was not reached: ${code ?? otherwise}${hint}`);
}

export class OutboundRefusal extends Error {
  override readonly name = "OutboundRefusal";
  readonly reason: OutboundReason;

  constructor(reason: OutboundReason, message: string) {
    super(message);
    this.reason = reason;
  }

  /** Whether it was a rule, not the network: trying again changes nothing. */
  get isDenial(): boolean {
    return this.reason !== "not_resolved" && this.reason !== "unreachable";
  }
}
