from regard.cli import command

command()
