/** Which branches may be pushed to: globs where `*` is any text within one part, `**` any text, `?` one character. */

import { normaliseGitUrl } from "../../kit/vault/destination.ts";
import type { GivenRepository } from "../tunnels/sandbox-connection.ts";

type Step = string | { readonly repeats: boolean; readonly crosses: boolean };

const BRANCHES = "refs/heads/";
const LONGEST_REF = 1_024;

/**
 * What a push to this repository must keep besides its credential's rules; undefined where it may not be pushed to at all.
 * Hosts know repositories by more than one name: where one that the session was given has rules, the others that it was not
 * given cannot be told from it, and are not pushed to.
 */
export function rulesOfSession(
  repositoryUrl: string,
  given: readonly GivenRepository[],
): readonly (readonly string[])[] | undefined {
  if (given.every(({ pushBranches }) => pushBranches.length === 0)) return [];
  const wanted = spellingOf(repositoryUrl);
  const those = given.filter(({ url }) => spellingOf(url) === wanted);
  return those.length === 0 ? undefined : those.map(({ pushBranches }) => pushBranches);
}

function spellingOf(url: string): string {
  return decodeURIComponent(normaliseGitUrl(url) ?? url).toLowerCase();
}

/** Without patterns everything is allowed; with some, only branches that one of them matches: no tags, no other refs. */
export function mayPush(ref: string, patterns: readonly string[]): boolean {
  if (patterns.length === 0) return true;
  if (!ref.startsWith(BRANCHES) || ref.length > LONGEST_REF) return false;
  const branch = ref.slice(BRANCHES.length);
  return patterns.some((pattern) => matches(branch, pattern));
}

/** All ways at once, so that no pattern makes it slow. */
function matches(text: string, pattern: string): boolean {
  const steps = stepsOf(pattern);
  let at = skipRepeats(new Set([0]), steps);
  for (const character of text) {
    const next = new Set<number>();
    for (const index of at) {
      const step = steps[index];
      if (step === undefined) continue;
      if (typeof step === "string") {
        if (step === character) next.add(index + 1);
      } else if (step.crosses || character !== "/") next.add(step.repeats ? index : index + 1);
    }
    at = skipRepeats(next, steps);
    if (at.size === 0) return false;
  }
  return at.has(steps.length);
}

function stepsOf(pattern: string): Step[] {
  return (pattern.match(/\*+|[\s\S]/gu) ?? []).map((part) => {
    if (part.startsWith("*")) return { repeats: true, crosses: part.length > 1 };
    return part === "?" ? { repeats: false, crosses: false } : part;
  });
}

function skipRepeats(at: Set<number>, steps: readonly Step[]): Set<number> {
  // What is added while the set is walked is walked too.
  for (const index of at) {
    const step = steps[index];
    if (typeof step === "object" && step.repeats) at.add(index + 1);
  }
  return at;
}
