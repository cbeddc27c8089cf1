/** Why a sandbox's request is answered by the proxy itself. The text is for whoever runs the program; it holds no value. */

export type EgressRefusalReason =
  | "bad_request"
  /** The request is for another host than its connection. */
  | "host_differs"
  /** Upgrades, tunnels within the connection. */
  | "not_supported"
  | "too_large"
  /** The rules of the platform, or of the installation. */
  | "forbidden"
  | "unreachable"
  /** The host's certificate is not to be trusted, or for another host. */
  | "certificate"
  /** The answer cannot be read, so values could not be taken out of it. */
  | "bad_answer"
  /** No word of the server on variables, or the proxy has too much to hold. */
  | "unavailable";

const STATUS: Readonly<Record<EgressRefusalReason, number>> = {
  bad_request: 400,
  host_differs: 421,
  not_supported: 501,
  too_large: 413,
  forbidden: 403,
  unreachable: 502,
  certificate: 502,
  bad_answer: 502,
  unavailable: 503,
};

export class EgressRefusal extends Error {
  override readonly name = "EgressRefusal";
  readonly reason: EgressRefusalReason;

  constructor(reason: EgressRefusalReason, message: string) {
    super(message);
    this.reason = reason;
  }

  get status(): number {
    return STATUS[this.reason];
  }
}
