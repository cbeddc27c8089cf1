/** Hosts that a variable is for. Server and proxy decide by this one function; the proxy by what is sealed. */

/** `*.example.com` stands for all below it, on every port. `host` is in lower case, without a dot at its end. */
export function isAllowedHost(host: string, allowedHosts: readonly string[]): boolean {
  return allowedHosts.some((allowed) =>
    allowed.startsWith("*.") ? host.endsWith(allowed.slice(1)) : host === allowed,
  );
}
