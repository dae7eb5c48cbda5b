// All that can happen to the list, as plain functions over data.

export const filters = {
  all: () => true,
  open: (todo) => !todo.done,
  done: (todo) => todo.done,
};

export function todosReducer(todos, action) {
  switch (action.type) {
    case 'added': {
      const title = action.title.trim();
      if (!title) return todos;
      const id = todos.reduce((highest, todo) => Math.max(highest, todo.id), 0) + 1;
      return [...todos, { id, title, done: false }];
    }
    case 'toggled':
      return todos.map((todo) => (todo.id === action.id ? { ...todo, done: !todo.done } : todo));
    case 'removed':
      return todos.filter((todo) => todo.id !== action.id);
    default:
      throw new Error(`unknown action ${action.type}`);
  }
}

export function load(storage) {
  try {
    const todos = JSON.parse(storage.getItem('todos'));
    return Array.isArray(todos) ? todos : [];
  } catch {
    return [];
  }
}

export function save(storage, todos) {
  storage.setItem('todos', JSON.stringify(todos));
}
