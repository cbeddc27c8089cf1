/** Where a browser may be sent back to. */
import { invalidField } from "../../kit/errors.ts";

const LOOPBACK = ["127.0.0.1", "[::1]", "localhost"];

/** MCP: the machine of whoever asks, or https. Throws INVALID_FIELD. */
export function checkRedirectUri(redirectUri: string): void {
  const url = URL.canParse(redirectUri) ? new URL(redirectUri) : undefined;
  const isLoopback = url?.protocol === "http:" && LOOPBACK.includes(url.hostname);
  const isPlain =
    /^[!-~]+$/.test(redirectUri) && !redirectUri.includes("#") && url?.username === "" && url.password === "";
  if (isPlain && (isLoopback || url?.protocol === "https:")) return;
  throw invalidField(
    "redirect_uri",
    "must be http://127.0.0.1:port/… (or [::1], localhost) or https://…, without user, password and fragment",
  );
}
