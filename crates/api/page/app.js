const answer = await fetch(new URL('v1/session', document.baseURI));
const session = await answer.json();
document.getElementById('state').textContent = session.caller ? `Logged in as ${session.caller}.` : 'Not logged in.';
