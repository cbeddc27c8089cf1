/** Why a git request is not answered by its host. Git prints the message, and ends with the status. */

export type GitRefusalReason =
  | "bad_request"
  /** The host wants a credential: there is none, or it does not take the one there is. */
  | "authentication_failed"
  | "forbidden"
  | "not_found"
  | "redirect_refused"
  | "unreachable"
  | "unavailable"
  /** The host answered with an error, or with what is not smart HTTP. */
  | "bad_answer";

const STATUS: Readonly<Record<GitRefusalReason, number>> = {
  bad_request: 400,
  // Not 401: git would ask for a password, which nobody in a sandbox has, and print nothing of this.
  authentication_failed: 403,
  forbidden: 403,
  not_found: 404,
  redirect_refused: 403,
  unreachable: 502,
  unavailable: 503,
  bad_answer: 502,
};

export class GitRefusal extends Error {
  override readonly name = "GitRefusal";
  readonly reason: GitRefusalReason;
  /** Who says no. */
  readonly part: "proxy" | "upstream";

  constructor(reason: GitRefusalReason, message: string, part: GitRefusal["part"] = "upstream") {
    super(message);
    this.reason = reason;
    this.part = part;
  }

  get status(): number {
    return STATUS[this.reason];
  }
}

export function refusalOfStatus(status: number, url: string, hasCredential: boolean): GitRefusal {
  const { host } = new URL(url);
  switch (status) {
    case 401:
      return new GitRefusal(
        "authentication_failed",
        hasCredential
          ? `authentication failed: ${host} refuses the session's credential`
          : `authentication failed: ${host} wants a credential, and no vault of the session has one for this repository`,
      );
    case 403:
      return new GitRefusal("forbidden", `${host} forbids this to the session's credential`);
    case 404:
      return new GitRefusal("not_found", `${host} has no such repository for this session`);
    default:
      return new GitRefusal("bad_answer", `${host} gave no answer of git's (status ${status})`);
  }
}
