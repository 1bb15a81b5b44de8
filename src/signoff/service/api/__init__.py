"""The REST API: what may be asked, by whom, and what is answered. Each endpoint is declared once
(`endpoint`); the routes and the OpenAPI description are made of the declarations."""
