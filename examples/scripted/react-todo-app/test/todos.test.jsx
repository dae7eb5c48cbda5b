import './browser.js';
import assert from 'node:assert/strict';
import { afterEach, beforeEach, test } from 'node:test';
import { act } from 'react';
import { createRoot } from 'react-dom/client';
import { App } from '../src/App.jsx';
import { load, todosReducer } from '../src/todos.js';

let root;
let page;

beforeEach(() => {
  window.localStorage.clear();
  page = document.createElement('main');
  document.body.append(page);
  open();
});

afterEach(() => {
  act(() => root.unmount());
  page.remove();
});

function open() {
  root = createRoot(page);
  act(() => root.render(<App storage={window.localStorage} />));
}

function add(title) {
  page.querySelector('input[name="title"]').value = title;
  act(() => page.querySelector('form').requestSubmit());
}

function click(selector) {
  act(() => page.querySelector(selector).click());
}

const titles = () => [...page.querySelectorAll('li label')].map((label) => label.textContent);

test('the reducer adds, toggles and removes', () => {
  let todos = todosReducer([], { type: 'added', title: ' milk ' });
  assert.deepEqual(todos, [{ id: 1, title: 'milk', done: false }]);
  todos = todosReducer(todos, { type: 'toggled', id: 1 });
  assert.equal(todos[0].done, true);
  assert.deepEqual(todosReducer(todos, { type: 'removed', id: 1 }), []);
  assert.equal(todosReducer(todos, { type: 'added', title: '  ' }), todos);
});

test('broken storage is an empty list', () => {
  assert.deepEqual(load({ getItem: () => '{' }), []);
});

test('what is typed and added appears', () => {
  add('buy milk');
  add('call home');
  assert.deepEqual(titles(), ['buy milk', 'call home']);
  assert.match(page.textContent, /2 left/);
});

test('a click marks an item as done, and the filters tell them apart', () => {
  add('buy milk');
  add('call home');
  click('li input');
  assert.equal(page.querySelectorAll('li.done').length, 1);
  assert.match(page.textContent, /1 left/);
  click('footer button:nth-of-type(2)');
  assert.deepEqual(titles(), ['call home']);
  click('footer button:nth-of-type(3)');
  assert.deepEqual(titles(), ['buy milk']);
});

test('an item can be removed', () => {
  add('buy milk');
  click('li button');
  assert.deepEqual(titles(), []);
});

test('the list is still there when the page is opened again', () => {
  add('buy milk');
  act(() => root.unmount());
  open();
  assert.deepEqual(titles(), ['buy milk']);
});
