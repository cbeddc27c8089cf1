/** Ends every run with why tests were skipped, and one line that programs can read: `N passed, N failed, N skipped`. */
import type { Reporter, TestModule } from "vitest/node";

export default class TotalsReporter implements Reporter {
  onTestRunEnd(modules: readonly TestModule[], errors: readonly unknown[]): void {
    const count = { passed: 0, failed: 0, skipped: 0, pending: 0 };
    const skippedBecause = new Map<string, number>();
    // A file that failed without a test that did (it cannot be loaded, or a hook failed and its tests count as skipped) is
    // one failure, as is an error outside any test.
    let broken = errors.length;
    for (const module of modules) {
      let failedTests = 0;
      for (const test of module.children.allTests()) {
        const result = test.result();
        count[result.state] += 1;
        if (result.state === "failed") failedTests += 1;
        if (result.state !== "skipped") continue;
        const why = result.note ?? `${module.relativeModuleId}: ${test.fullName}`;
        skippedBecause.set(why, (skippedBecause.get(why) ?? 0) + 1);
      }
      if (failedTests === 0 && module.state() === "failed") broken += 1;
    }
    setTimeout(() => {
      for (const [why, tests] of skippedBecause) console.log(`${tests} skipped: ${why}`);
      console.log(
        `${count.passed} passed, ${count.failed + broken} failed, ${count.skipped + count.pending} skipped`,
      );
    }, 0);
  }
}
