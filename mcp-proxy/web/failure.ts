/** Why a web tool gives no page or no results: a word that models know from hosted tools, and what to do otherwise. */
import type { FailureOrigin } from "../../kit/errors.ts";
import type { OutboundRefusal } from "../outbound/refusal.ts";

export type WebFailureCode =
  | "invalid_tool_input"
  | "url_too_long"
  | "url_not_allowed"
  | "url_not_in_prior_context"
  | "url_not_accessible"
  | "unsupported_content_type"
  | "content_too_large"
  | "too_many_requests"
  | "unavailable"
  | "cancelled";

const ORIGINS: Readonly<Record<WebFailureCode, FailureOrigin>> = {
  invalid_tool_input: { part: "model", reason: "INVALID_TOOL_CALL" },
  url_too_long: { part: "model", reason: "INVALID_TOOL_CALL" },
  url_not_allowed: { part: "proxy", reason: "URL_NOT_ALLOWED" },
  url_not_in_prior_context: { part: "proxy", reason: "URL_NOT_IN_PRIOR_CONTEXT" },
  url_not_accessible: { part: "upstream", reason: "URL_NOT_ACCESSIBLE" },
  unsupported_content_type: { part: "upstream", reason: "UNSUPPORTED_CONTENT_TYPE" },
  content_too_large: { part: "upstream", reason: "CONTENT_TOO_LARGE" },
  too_many_requests: { part: "upstream", reason: "TOO_MANY_REQUESTS" },
  unavailable: { part: "proxy", reason: "WEB_UNAVAILABLE" },
  cancelled: { part: "client", reason: "CANCELLED" },
};

export class WebFailure extends Error {
  override readonly name = "WebFailure";
  readonly code: WebFailureCode;
  /** For the audit log: an HTTP status, or a reason in lower case. */
  readonly outcome: string;

  constructor(code: WebFailureCode, message: string, outcome: string = code) {
    super(message);
    this.code = code;
    this.outcome = outcome;
  }

  get origin(): FailureOrigin {
    return ORIGINS[this.code];
  }

  /** For the model. */
  get text(): string {
    return `${this.code}: ${this.message}`;
  }
}

/** Of what the rules for requests of the platform say to a page's URL. */
export function pageFailure(error: OutboundRefusal): WebFailure {
  const { reason, message } = error;
  switch (reason) {
    case "bad_url":
      return new WebFailure("url_not_allowed", message, reason);
    case "address_not_allowed":
    case "plain_http":
      // What the name leads to inside of a network is nobody's business.
      return new WebFailure(
        "url_not_allowed",
        "only pages of the public internet are read",
        "address_not_allowed",
      );
    case "host_denied":
    case "redirect_refused":
      return new WebFailure("url_not_allowed", message, reason);
    case "not_resolved":
    case "unreachable":
      return new WebFailure("url_not_accessible", message, reason);
  }
}
