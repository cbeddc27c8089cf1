/** Finds the route of a request (pure). */
import type { ApiRoute } from "./api-route.ts";

export type Match =
  | { readonly kind: "route"; readonly route: ApiRoute; readonly params: Readonly<Record<string, string>> }
  /** The path exists, with other methods. */
  | { readonly kind: "method"; readonly allowed: readonly string[] }
  | { readonly kind: "none" };

interface Entry {
  readonly segments: readonly string[];
  readonly route: ApiRoute;
}

export class RouteTable {
  private readonly entries: readonly Entry[];

  /** Throws when two routes are the same. */
  constructor(routes: readonly ApiRoute[]) {
    const seen = new Set<string>();
    for (const { method, path } of routes) {
      const key = `${method} ${path.replace(/\{[^}]*\}/g, "{}")}`;
      if (seen.has(key)) throw new Error(`${method} ${path} is there twice`);
      seen.add(key);
    }
    this.entries = routes.map((route) => ({ route, segments: route.path.split("/").slice(1) }));
  }

  /** `path` is as it came, percent-encoded. A fixed segment goes before a name. */
  find(method: string, path: string): Match {
    const segments = decoded(path);
    if (segments === undefined) return { kind: "none" };
    const fitting = this.entries.filter((entry) => fits(entry.segments, segments));
    if (fitting.length === 0) return { kind: "none" };
    const fixed = (entry: Entry) => entry.segments.filter((segment) => nameOf(segment) === undefined).length;
    const [best] = fitting
      .filter(({ route }) => route.method === method)
      .sort((one, other) => fixed(other) - fixed(one));
    if (best === undefined) {
      return { kind: "method", allowed: [...new Set(fitting.map(({ route }) => route.method))] };
    }
    return { kind: "route", route: best.route, params: paramsOf(best.segments, segments) };
  }
}

function decoded(path: string): string[] | undefined {
  try {
    return path.split("/").slice(1).map(decodeURIComponent);
  } catch {
    return undefined;
  }
}

function fits(pattern: readonly string[], segments: readonly string[]): boolean {
  if (pattern.length !== segments.length) return false;
  return pattern.every((part, at) =>
    nameOf(part) === undefined ? part === segments[at] : segments[at] !== "",
  );
}

function paramsOf(pattern: readonly string[], segments: readonly string[]): Record<string, string> {
  const named = pattern.flatMap((part, at) => {
    const name = nameOf(part);
    return name === undefined ? [] : [[name, segments[at]!] as const];
  });
  return Object.fromEntries(named);
}

function nameOf(segment: string): string | undefined {
  return /^\{(.+)\}$/.exec(segment)?.[1];
}
