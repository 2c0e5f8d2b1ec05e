// What the scripts beside this one share: checks that end the process at the first mismatch.
import assert from 'node:assert/strict';

export const URL = process.argv[2] ?? (() => { throw new Error('usage: node SCRIPT.mjs postgres://USER@HOST:PORT/DATABASE') })();

export function check(name, found, expected) {
  try {
    assert.deepEqual(found, expected);
  } catch {
    console.error(`FAILED ${name}`);
    console.error('expected:', expected);
    console.error('found:   ', found);
    process.exit(1);
  }
  console.log('ok', name);
}

// The SQLSTATE sits on the driver's error, or on the one an ORM has wrapped.
export function sqlstate(error) {
  for (let at = error; at; at = at.cause ?? at.original ?? at.parent ?? at.driverError) {
    if (typeof at.code === 'string' && /^[0-9A-Z]{5}$/.test(at.code)) return at.code;
  }
  return String(error);
}

export async function fails(name, code, run) {
  let error;
  try {
    await run();
  } catch (thrown) {
    error = thrown;
  }
  if (error === undefined) {
    console.error(`FAILED ${name}: no error`);
    process.exit(1);
  }
  check(name, sqlstate(error), code);
  return error;
}
