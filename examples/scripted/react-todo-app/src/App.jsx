import { useEffect, useReducer, useState } from 'react';
import { filters, load, save, todosReducer } from './todos.js';

export function App({ storage }) {
  const [todos, dispatch] = useReducer(todosReducer, storage, load);
  const [filter, setFilter] = useState('all');
  useEffect(() => save(storage, todos), [storage, todos]);

  const left = todos.filter(filters.open).length;
  return (
    <>
      <h1>Todos</h1>
      <NewTodo onAdd={(title) => dispatch({ type: 'added', title })} />
      <ul>
        {todos.filter(filters[filter]).map((todo) => (
          <li key={todo.id} className={todo.done ? 'done' : ''}>
            <label>
              <input
                type="checkbox"
                checked={todo.done}
                onChange={() => dispatch({ type: 'toggled', id: todo.id })}
              />
              {todo.title}
            </label>
            <button
              aria-label={`Remove ${todo.title}`}
              onClick={() => dispatch({ type: 'removed', id: todo.id })}
            >
              ×
            </button>
          </li>
        ))}
      </ul>
      <footer>
        <span>{left === 1 ? '1 left' : `${left} left`}</span>
        {Object.keys(filters).map((name) => (
          <button key={name} aria-pressed={name === filter} onClick={() => setFilter(name)}>
            {name}
          </button>
        ))}
      </footer>
    </>
  );
}

function NewTodo({ onAdd }) {
  function submit(event) {
    event.preventDefault();
    const input = event.target.elements.title;
    onAdd(input.value);
    input.value = '';
  }
  return (
    <form onSubmit={submit}>
      <input name="title" placeholder="What is to be done?" aria-label="New todo" />
      <button>Add</button>
    </form>
  );
}
