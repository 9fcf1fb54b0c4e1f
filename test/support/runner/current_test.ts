/**
 * A faster way for Node's test runner to know which test is running. By itself it watches every promise from its creation to its
 * collection (`async_hooks`), which takes a fifth of the processor time of a test of the server. `AsyncLocalStorage` knows the same
 * without watching.
 *
 * The runner takes `createHook` and `executionAsyncId` from `node:async_hooks` when it is loaded. It gets others here: a hook that
 * is told of tests only, and the id of the current test. It is preloaded (`--import`), before anything
 * imports `node:test`.
 */

import asyncHooks, { AsyncLocalStorage, AsyncResource, type HookCallbacks } from 'node:async_hooks';

const current = new AsyncLocalStorage<number>();
const known = new WeakSet<AsyncResource>();
let remember: HookCallbacks['init'];

const { createHook, executionAsyncId } = asyncHooks;
const { runInAsyncScope } = AsyncResource.prototype;

/** A test, a suite, a hook of them and a reporter run their functions in their own scope. */
AsyncResource.prototype.runInAsyncScope = function (this: AsyncResource, work, thisArg, ...parameters) {
  if (!known.has(this)) {
    known.add(this);
    // Does nothing if the resource is no test.
    remember?.(this.asyncId(), 'Test', 0, this);
  }
  const run = () => current.run(this.asyncId(), () => Reflect.apply(work, thisArg, parameters));
  return runInAsyncScope.call(this, run) as ReturnType<typeof work>;
};

const unused = createHook({});
unused.enable = () => unused;

Object.assign(asyncHooks, {
  createHook(callbacks: HookCallbacks) {
    remember = callbacks.init;
    // Even a hook without callbacks would watch promises, once it is enabled.
    return unused;
  },
  executionAsyncId: () => current.getStore() ?? 0,
});
await import('node:test');
Object.assign(asyncHooks, { createHook, executionAsyncId });
