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
