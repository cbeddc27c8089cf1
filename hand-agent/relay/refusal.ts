/** Why the relay does not do what a program asked for, in words that the program's user can act on. */

export type RefusalReason =
  | "bad_request"
  | "host_not_allowed"
  | "address_not_allowed"
  | "server_name_not_allowed"
  | "not_resolved"
  | "unreachable"
  | "corporate_proxy"
  | "too_many_connections"
  | "not_allowed_for_session"
  | "no_proxy"
  | "tunnel_failed";

const STATUS: Readonly<Record<RefusalReason, { code: number; text: string }>> = {
  bad_request: { code: 400, text: "Bad Request" },
  host_not_allowed: { code: 403, text: "Host not allowed by the environment" },
  address_not_allowed: { code: 403, text: "Address not allowed by the environment" },
  server_name_not_allowed: { code: 403, text: "TLS server name not allowed by the environment" },
  not_resolved: { code: 502, text: "Host name not resolved" },
  unreachable: { code: 502, text: "Host not reached" },
  corporate_proxy: { code: 502, text: "Refused by the proxy of the network" },
  too_many_connections: { code: 503, text: "Too many connections" },
  not_allowed_for_session: { code: 403, text: "Not allowed for this session" },
  no_proxy: { code: 503, text: "No proxy takes the connection" },
  tunnel_failed: { code: 502, text: "The way to the proxy failed" },
};

export class RelayRefusal extends Error {
  override readonly name = "RelayRefusal";
  readonly reason: RefusalReason;

  constructor(reason: RefusalReason, message: string) {
    super(message);
    this.reason = reason;
  }

  get status(): { code: number; text: string } {
    return STATUS[this.reason];
  }

  /** Whether it was policy, not the network. */
  get isDenial(): boolean {
    return this.status.code === 403;
  }
}

/** The whole answer, after which the connection ends. Clients show the first line where they drop the body of CONNECT. */
export function refusalResponse(refusal: RelayRefusal): string {
  const { code, text } = refusal.status;
  const body = `${refusal.message}\n`;
  return [
    `HTTP/1.1 ${code} ${text}`,
    "Content-Type: text/plain; charset=utf-8",
    `Content-Length: ${Buffer.byteLength(body)}`,
    `X-Tendon-Relay: ${refusal.reason}`,
    "Connection: close",
    "",
    body,
  ].join("\r\n");
}
