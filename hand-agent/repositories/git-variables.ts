/** How git in a hand finds the way through the relay: by variables alone, so that remotes keep their own URLs. */
import type { GitRepository } from "../../proto/gen/tendon/v1/hand_pb.js";
import { RELAY_PORT } from "../relay/relay.ts";

/** `env` with git's settings behind those that stand there already. Its programs ask the relay for all of these hosts. */
export function withGitVariables(
  env: Readonly<Record<string, string>>,
  repositories: readonly GitRepository[],
): Record<string, string> {
  const authorities = new Set(repositories.map(({ url }) => new URL(url).host));
  const settings = [...authorities].flatMap(settingsOf);
  const before = /^\d{1,4}$/.test(env.GIT_CONFIG_COUNT ?? "") ? Number(env.GIT_CONFIG_COUNT) : 0;
  const own = settings.flatMap(([key, value], index) => [
    [`GIT_CONFIG_KEY_${before + index}`, key],
    [`GIT_CONFIG_VALUE_${before + index}`, value],
  ]);
  return { ...env, ...Object.fromEntries(own), GIT_CONFIG_COUNT: String(before + settings.length) };
}

/** Also what submodules are often written with: there is no ssh through the relay. */
function settingsOf(authority: string): [key: string, value: string][] {
  const key = `url.http://127.0.0.1:${RELAY_PORT}/git/${authority}/.insteadOf`;
  const meant = [`https://${authority}/`];
  if (!authority.includes(":")) meant.push(`git@${authority}:`, `ssh://git@${authority}/`);
  return meant.map((value) => [key, value]);
}
