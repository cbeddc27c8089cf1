/** Turns a failure into what somebody at a terminal can do about it. */
import { REASONS, TendonError } from "../kit/errors.ts";
import { RemoteError } from "../kit/rpc/status.ts";
import { UNTRUSTED } from "../kit/rpc/transport-failure.ts";
import { TENDON } from "./command-name.ts";
import type { Target } from "./connect.ts";

/** Whether the failure is the way to the server, not something that the server said. */
export function isUnreachable(error: unknown): boolean {
  return error instanceof RemoteError && error.wireReason === "" && error.reason === "UNAVAILABLE";
}

/** One line, or two: what went wrong and what to do. Undefined for what is no failure of a call. */
export function explainFailure(error: unknown, target: Target): string | undefined {
  if (!(error instanceof TendonError)) return undefined;
  if (isUnreachable(error)) {
    if (error.message.startsWith(UNTRUSTED)) return `cannot talk to ${target.url}: ${error.message}`;
    return `cannot reach the server at ${target.url}: is it running? Start one here with "npm start" (${TENDON} start), or name another with --url or TENDON_URL.\n${error.message}`;
  }
  switch (REASONS[error.reason].httpStatus) {
    case 401:
      return `${target.url} does not accept the key: ${error.message}\nThe key: ${target.keyOrigin}. Set TENDON_API_KEY, or --data-dir to the folder that holds admin.key.`;
    case 403:
      if (error.message.startsWith("reason: ")) return `${error.message}. Say it with --reason "…"`;
      return `${error.message}\nThe key in use: ${target.keyOrigin}. "${TENDON} key list" tells the roles of keys.`;
    case 504:
      return `${target.url} did not answer in time: ${error.message}\n"${TENDON} doctor" tells what is missing.`;
    default:
      if (error.reason !== "NOT_IMPLEMENTED") return error.message;
      return `the server at ${target.url} cannot do that (an older build?): ${error.message}`;
  }
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
