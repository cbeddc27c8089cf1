/** Turns a failure into what somebody at a terminal can do about it. */
import { REASONS, TendonError } from "../kit/errors.ts";
import { RemoteError } from "../kit/rpc/status.ts";
import type { Target } from "./connect.ts";

/** Whether the failure is the way to the server, not something that the server said. */
export function isUnreachable(error: unknown): boolean {
  return error instanceof RemoteError && error.wireReason === "" && error.reason === "UNAVAILABLE";
}

/** One line, or two: what went wrong and what to do. Undefined for what is no failure of a call. */
export function explainFailure(error: unknown, target: Target): string | undefined {
  if (!(error instanceof TendonError)) return undefined;
  if (isUnreachable(error)) {
    return `cannot reach the server at ${target.url}: is it running? Start one here with "npm start" (tendon start), or name another with --url or TENDON_URL.\n${unreachableCause(error.message)}`;
  }
  switch (REASONS[error.reason].httpStatus) {
    case 401:
      return `${target.url} does not accept the key: ${error.message}\nThe key: ${target.keyOrigin}. Set TENDON_API_KEY, or --data-dir to the folder that holds admin.key.`;
    case 403:
      return `${error.message}\nThe key in use: ${target.keyOrigin}. "tendon key list" tells the roles of keys.`;
    case 504:
      return `${target.url} did not answer in time: ${error.message}\n"tendon doctor" tells what is missing.`;
    default:
      if (error.reason !== "NOT_IMPLEMENTED") return error.message;
      return `the server at ${target.url} cannot do that (an older build?): ${error.message}`;
  }
}

/** What the transport says, without its own words around it. */
function unreachableCause(message: string): string {
  const cause = /Last error: (?:Error: )?(.*?)\.? *(?:Resolution note: *(.*))?$/.exec(message);
  return cause === null ? message : [cause[1], cause[2]].filter(Boolean).join("; ");
}

/** For `--json`: what a program can act on. */
export function failureJson(error: unknown, message: string): object {
  const reason =
    error instanceof RemoteError && error.wireReason !== ""
      ? error.wireReason
      : error instanceof TendonError
        ? error.reason
        : "CLIENT";
  const metadata = error instanceof TendonError ? error.metadata : {};
  return { error: { reason, message, metadata } };
}
