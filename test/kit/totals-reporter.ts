/**
 * Ends every run with which tests failed and why others were skipped, a line each, and one line that programs can read:
 * `N passed, N failed, N skipped`.
 */
import { stripVTControlCharacters } from "node:util";
import type { Reporter, TestModule } from "vitest/node";

/** Of an error's text, so that a long run's failures can be read at one glance at its end. */
const ERROR_CHARACTERS = 160;

type Errors = readonly { readonly message?: string | undefined }[];

export default class TotalsReporter implements Reporter {
  onTestRunEnd(modules: readonly TestModule[], errors: readonly unknown[]): void {
    const count = { passed: 0, failed: 0, skipped: 0, pending: 0 };
    const skippedBecause = new Map<string, number>();
    const failures: string[] = [];
    // A file that failed without a test that did (it cannot be loaded, or a hook failed and its tests count as skipped) is
    // one failure, as is an error outside any test.
    let broken = errors.length;
    for (const module of modules) {
      let failedTests = 0;
      for (const test of module.children.allTests()) {
        const result = test.result();
        count[result.state] += 1;
        if (result.state === "failed") {
          failedTests += 1;
          failures.push(lineOf(`${module.relativeModuleId}: ${test.fullName}`, result.errors));
        }
        if (result.state !== "skipped") continue;
        const why = result.note ?? `${module.relativeModuleId}: ${test.fullName}`;
        skippedBecause.set(why, (skippedBecause.get(why) ?? 0) + 1);
      }
      if (failedTests > 0 || module.state() !== "failed") continue;
      broken += 1;
      failures.push(lineOf(module.relativeModuleId, [...module.errors(), ...suiteErrors(module)]));
    }
    if (errors.length > 0) failures.push(lineOf("outside any test", errors as Errors));
    setTimeout(() => {
      for (const failure of failures) console.log(`failed: ${failure}`);
      for (const [why, tests] of skippedBecause) console.log(`${tests} skipped: ${why}`);
      console.log(
        `${count.passed} passed, ${count.failed + broken} failed, ${count.skipped + count.pending} skipped`,
      );
    }, 0);
  }
}

function suiteErrors(module: TestModule): Errors {
  return [...module.children.allSuites()].flatMap((suite) => suite.errors());
}

function lineOf(what: string, errors: Errors): string {
  const [first = ""] = stripVTControlCharacters(errors[0]?.message ?? "").split("\n");
  return `${what}: ${first.slice(0, ERROR_CHARACTERS)}`;
}
